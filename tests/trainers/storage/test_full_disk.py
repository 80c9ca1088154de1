"""Errors of a full disk, as Python, torch and safetensors raise them."""

import errno
import os
import socket

import pytest

from trainers.errors import ResumeError, StorageError
from trainers.storage.full_disk import is_full_disk, naming_full_disk
from trainers.storage.s3_errors import explain_s3_error

WRITER = "[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0: file write failed"


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
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), 0, False),
    ],
)
def test_a_full_disk_is_recognized(error: Exception, free_bytes: int, expected: bool) -> None:
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


def test_a_download_to_a_full_disk_names_the_host_too() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    found = explain_s3_error(full, bucket="b", endpoint="http://s3")
    assert found is not None
    assert f"a disk of host {socket.gethostname()} is full (" in found.cause
    assert not found.transient
