"""A process that prints while its log is kept: python -m tests.trainers.run_folder.log_process <run folder> <what>.

words    prints from Python, from C, and to the bare descriptors, then ends
raises   prints and raises inside the block
nothing  prints nothing inside the block
waits    prints, says on the file <run folder>/ready that it has, prints more, and waits to be killed
"""

import ctypes
import os
import sys
import time
from pathlib import Path

from trainers.run_folder.layout import RunFolder
from trainers.run_folder.worker_logs import copied_log
from trainers.storage import open_storage

WHAT = {"words", "raises", "nothing", "waits"}


def main(folder: str, what: str) -> None:
    """Keeps the log of rank 1, group abc, attempt 2."""
    assert what in WHAT
    Path(folder).mkdir(exist_ok=True)
    print("before the block", flush=True)
    with copied_log(RunFolder(open_storage(folder)), 2, rank=1, group="abc"):
        if what == "nothing":
            return
        print("from Python", flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        os.write(1, "to the descriptor: č\n".encode())
        libc = ctypes.CDLL(None)
        libc.puts(b"from C")
        libc.fflush(None)
        print(f"the token is {os.environ.get('TOKEN')} and no other", flush=True)
        if what == "raises":
            raise ValueError("inside the block")
        if what == "waits":
            Path(folder, "ready").touch()
            while not Path(folder, "go on").exists():
                time.sleep(0.01)
            os.write(2, b"last words, without an end of line")
            Path(folder, "done").touch()
            time.sleep(600)
        os.write(1, b"no end of line")


if __name__ == "__main__":
    main(*sys.argv[1:])
