"""Whether a process has ended. A zombie has, too: it stays until its parent asks for its exit code."""

import time

import psutil


def has_ended(pid: int) -> bool:
    """Whether there is no such process, or only its exit code."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(pid: int, timeout_s: float = 60.0) -> None:
    """Waits until a process has ended.

    Raises:
        TimeoutError: it goes on.
    """
    end_s = time.monotonic() + timeout_s
    while not has_ended(pid):
        if time.monotonic() > end_s:
            raise TimeoutError(f"process {pid} goes on after {timeout_s:g} s")
        time.sleep(0.05)
