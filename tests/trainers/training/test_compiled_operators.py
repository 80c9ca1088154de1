"""What a killed process leaves where it compiled does not stop the next."""

import ctypes
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension
from torch.utils.file_baton import FileBaton

from trainers.training.sharding import FOLDER_VARIABLE, CompileLock, operators_compiled_here

HOLDS = """
import sys, time
from trainers.training.sharding import CompileLock
lock = CompileLock(sys.argv[1])
lock.try_acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of extensions of the test."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "extensions"))


def compile_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compiles an operator as DeepSpeed does, and calls it."""
    # As in a process that has compiled nothing.
    monkeypatch.setattr(cpp_extension, "JIT_EXTENSION_VERSIONER", type(cpp_extension.JIT_EXTENSION_VERSIONER)())
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int one() { return 1; }\n')
    cpp_extension.load("one", [str(source)], is_python_module=False)
    (library,) = Path(os.environ[FOLDER_VARIABLE]).glob("one/one.so")
    value: int = ctypes.CDLL(str(library)).one()
    return value


@pytest.mark.system
def test_a_lock_that_a_killed_process_left_does_not_stop_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with operators_compiled_here():
        left = Path(os.environ[FOLDER_VARIABLE]) / "one/lock"
        left.parent.mkdir(parents=True)
        left.touch()
        assert [compile_one(tmp_path, monkeypatch) for _ in range(2)] == [1, 1]
    assert os.environ[FOLDER_VARIABLE] == str(tmp_path / "extensions")
    assert vars(cpp_extension)["FileBaton"] is FileBaton


@pytest.mark.integration
def test_one_process_compiles_at_a_time_and_a_killed_one_lets_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            with path.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            holder.kill()
        lock = CompileLock(str(path))
        assert lock.try_acquire()
        lock.release()
