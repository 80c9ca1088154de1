"""Errors of a full disk, as Python, torch and safetensors raise them."""

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from tests.s3 import FaultProxy
from trainers.errors import FullDiskError, ResumeError, StorageError
from trainers.storage import Storage, open_storage
from trainers.storage.full_disk import is_full_disk, naming_full_disk

WRITER = "[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0: file write failed"

# Of torch, about what DataLoaders share.
SHARED = "{} </torch_18_2290117_0>: No space left on device (28)"


@pytest.mark.parametrize(
    ("error", "free_bytes", "expected"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x"), 2**40, True),
        (
            RuntimeError('I/O error: Os { code: 28, kind: StorageFull, message: "No space left on device" }'),
            2**40,
            True,
        ),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), 2**40, True),
        (RuntimeError(WRITER), 0, True),
        (RuntimeError(WRITER), 2**40, False),
        (RuntimeError(WRITER), None, False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None, True),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), 0, False),
        (RuntimeError(SHARED.format("unable to allocate shared memory(shm) for file")), 0, False),
        (RuntimeError(SHARED.format("unable to write to file")), 0, False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/x"), 0, False),
    ],
)
def test_a_full_disk_is_recognized(error: Exception, free_bytes: int | None, expected: bool) -> None:
    assert is_full_disk(error, free_bytes) is expected


def test_the_message_names_host_and_fix_and_other_errors_stay() -> None:
    with (
        pytest.raises(StorageError, match=f"a disk of host {socket.gethostname()} is full .*free space on it"),
        naming_full_disk(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for error in (ResumeError("No space left on device"), ValueError("x")):
        with pytest.raises(type(error)) as caught, naming_full_disk():
            raise error
        assert caught.value is error


@pytest.mark.parametrize("second", [False, True])
def test_the_disk_of_the_file_is_named_of_a_copy_that_of_the_target(tmp_path: Path, second: bool) -> None:
    target = str(tmp_path / "file")
    names = ("/elsewhere/file", None, target) if second else (target,)
    with pytest.raises(StorageError, match=rf"; {tmp_path} has \d+ MiB free"), naming_full_disk():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)


def no_folder(*given: object) -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


@pytest.mark.parametrize("broken", [(tempfile, "gettempdir"), (shutil, "disk_usage")], ids=lambda item: item[1])
def test_an_error_is_not_replaced_by_that_of_a_disk_that_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, broken: tuple[object, str]
) -> None:
    monkeypatch.setattr(*broken, no_folder)
    with (
        pytest.raises(StorageError, match=r"is full \(OSError: .*No space left on device\): free space"),
        naming_full_disk(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ValueError, match=r"^x$"), naming_full_disk():
        raise ValueError("x")


def test_a_full_disk_is_not_tried_again_at_once_wherever_it_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(number: int) -> NoReturn:
        raise full

    monkeypatch.setattr(os, "fsync", write)
    with pytest.raises(FullDiskError) as caught:
        open_storage(str(tmp_path)).write_bytes("x", b"x")
    assert caught.value.final and caught.value.exit_code == StorageError.exit_code
    with pytest.raises(FullDiskError), naming_full_disk():
        raise full


def test_a_download_to_a_full_disk_names_the_host_too_and_is_not_tried_again(
    shaky_storage: Storage, fault_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, data: bytes) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shaky_storage.write_bytes("x", b"content")
    fault_proxy.requests.clear()
    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(FullDiskError, match=rf"a disk of host {socket.gethostname()} is full \("):
        shaky_storage.download_file("x", tmp_path / "x")
    assert len(fault_proxy.requests) == 1


def test_a_copy_between_disks_names_the_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copyfile(source: Path, target: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    storage, node = open_storage(str(tmp_path / "runs")), tmp_path / "node"
    storage.write_bytes("model", b"x")
    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(FullDiskError, match=f"host {socket.gethostname()} is full .*; {node} has .*TMPDIR"):
        storage.download_file("model", node / "model")
    node.mkdir(exist_ok=True)
    (node / "new").write_bytes(b"x")
    with pytest.raises(FullDiskError, match=rf"No space left on device \({tmp_path}/runs/.*another storage path"):
        storage.upload_file(node / "new", "new")
