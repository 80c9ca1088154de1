import errno
import os
import tempfile

import pytest

from trainers.distributed.signals import exit_code_of
from trainers.errors import StorageError


def test_where_no_folder_takes_temporary_files_one_message_says_how_to_name_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    # As all of them are where the system's disk is full, or mounted for reading alone.
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc", "/sys"])
    assert exit_code_of(lambda: len(tempfile.mkdtemp())) == StorageError.exit_code
    shown = capsys.readouterr().err
    assert shown.startswith("error: No usable temporary directory found in ['/proc', '/sys']: each is full or ")
    assert shown.endswith("set TMPDIR to a folder on another disk\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_a_disk_refuses_is_one_message(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> int:
        raise OSError(number, os.strerror(number), "/mnt/full/x")

    assert exit_code_of(write) == StorageError.exit_code
    assert capsys.readouterr().err.startswith("error: /mnt/full/x cannot be ")


def test_an_error_of_the_program_itself_keeps_its_traceback() -> None:
    def open_missing() -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")

    with pytest.raises(FileNotFoundError):
        exit_code_of(open_missing)
