"""One command at a time starts or ends a cluster, and one that is asked to end takes along what it has started."""

import contextlib
import fcntl
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from jobs.clusters.managed.cluster_record import check_name, clusters_folder
from jobs.errors import ConflictError
from trainers.distributed.machine import make_private_folder

# As shells report a command that a signal has ended.
SIGNAL_EXIT = 128


@contextlib.contextmanager
def lock_cluster(name: str) -> Iterator[None]:
    """Holds a cluster while it is started or ended; SIGTERM and SIGHUP end the block by an exception.

    Raises:
        ConflictError: another command of this user is at work on it.
        ConfigError: the name cannot be that of a cluster.
        SystemExit: a signal came.
    """
    folder = clusters_folder() / check_name(name)
    make_private_folder(folder)
    with (folder / "lock").open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"another `rayscribe cluster up` or `down` is already running for {name}: wait for it, or stop it"
            ) from None
        in_main = threading.current_thread() is threading.main_thread()
        caught = (signal.SIGTERM, signal.SIGHUP) if in_main else ()
        former = {number: signal.signal(number, _raise) for number in caught}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise SystemExit(SIGNAL_EXIT + number)
