"""What ranks send each other and ask the storage: python -m tests.benchmarks.scale.coordination [--ranks 4 16 64].

Ranks are threads over one counting store. Counted are the requests of a barrier, of a vote on the last step, and of a
resume with the steps after it; what a thousand ranks need is extrapolated from the last two sizes.
"""

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.benchmarks.scale.figures import Figure, print_figures
from tests.trainers.run_folder.writers import begin, staged
from trainers.distributed.coordinated_stop import LastStep
from trainers.distributed.session import LocalSession, LoggedBarrier
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.storage import open_storage
from trainers.storage.local_folder import LocalStorage
from trainers.training.callbacks import MetricsLog

EXTRAPOLATED = 1_000
RANKS_PER_NODE = 8
LINES = 100
WAIT_S = 120.0
MOST_STEPS = 1_000_000
STORAGE_REQUESTS = ("read_bytes", "exists", "list_files", "list_folders", "create_exclusive", "append_line")


class CountingStore:
    """A store that counts its requests, each key of a request by itself."""

    def __init__(self) -> None:
        self._store, self._lock = HashStore(), threading.Lock()
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def counting(*arguments: Any) -> Any:
            with self._lock:
                self.requests[name] += len(arguments[0]) if name == "check" else 1
            return getattr(self._store, name)(*arguments)

        return counting


@dataclass(frozen=True)
class ThreadSession(LocalSession):
    """A rank that is a thread; what is gathered goes through a list that all share."""

    together: Any = None
    items: Any = None
    request: Any = None

    @property
    def node(self) -> str:
        """As of a node with RANKS_PER_NODE ranks."""
        return str(self.rank // RANKS_PER_NODE)

    def gather(self, item: Any, what: str = "") -> list[Any]:
        """See Session."""
        self.items[self.rank] = item
        self.together.wait(WAIT_S)
        gathered = list(self.items)
        self.together.wait(WAIT_S)
        return gathered

    def broadcast(self, make: Callable[[], Any], what: str = "") -> Any:
        """See Session."""
        return self.gather(make() if self.is_main_process else None)[0]

    def barrier(self, what: str = "") -> None:
        """See Session."""
        self.together.wait(WAIT_S)

    def stop_requested(self) -> bool:
        """Whether the benchmark has requested it."""
        return bool(self.request.is_set())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.coordination", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64])
    sizes: list[int] = parser.parse_args(arguments).ranks
    print(f"ranks as threads, {RANKS_PER_NODE} a node; {LINES} lines of metrics after the resume\n")
    figures = []
    for what, measure in MEASURED.items():
        counts = [measure(size) for size in sizes]
        figures += [Figure(f"{what}, {size} ranks", count, digits=0) for size, count in zip(sizes, counts, strict=True)]
        slope = (counts[-1] - counts[-2]) / (sizes[-1] - sizes[-2])
        beyond = counts[-1] + slope * (EXTRAPOLATED - sizes[-1])
        figures.append(Figure(f"{what}, {EXTRAPOLATED:,} ranks, extrapolated", beyond, digits=0))
        grown = counts[-1] / sizes[-1] / (counts[-2] / sizes[-2])
        figures.append(Figure(f"{what} of one rank, {sizes[-1]} ranks against {sizes[-2]}", grown, most=1.2))
    print_figures(figures)
    return 0


def _barrier(size: int) -> float:
    """Requests of all ranks until all are there, without the looks of those that wait."""
    store = CountingStore()
    with ThreadPoolExecutor(size) as pool:
        barriers = [LoggedBarrier(rank, size, print, store) for rank in range(size)]
        list(pool.map(lambda each: each.wait("the benchmark"), barriers))
    return store.requests.total() - store.requests["check"]


def _vote(size: int) -> float:
    """Requests of all ranks from the request to stop to the step that they agree on, waiting included."""
    store, request = CountingStore(), threading.Event()
    sessions = _sessions(size, request)

    def train(session: ThreadSession) -> int | None:
        arguments = SimpleNamespace(metric_for_best_model=None)
        with LastStep(session, 0, store) as last:
            for step in range(1, MOST_STEPS):
                session.barrier()
                state, control = SimpleNamespace(global_step=step), SimpleNamespace(should_evaluate=False)
                last.on_step_end(arguments, state, control)
                if last.stopped_at is not None:
                    return last.stopped_at
        return None

    with ThreadPoolExecutor(size) as pool:
        request.set()
        assert len(set(pool.map(train, sessions))) == 1
    return store.requests.total()


def _resume(size: int) -> float:
    """Requests to the storage of all ranks: they take over, fetch the checkpoint, and write lines of metrics."""
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary, ExitStack() as stack:
        stack.enter_context(patch.object(tempfile, "tempdir", temporary))
        folder = RunFolder(open_storage(f"{temporary}/run"))
        driver = begin(folder)
        first = GroupWriter.of(folder, driver.attempt, "before")
        first.open(1)
        upload_staged(staged(Path(temporary) / "staged", 10), first, RetentionPolicy(3, "eval_wer"))
        counts = stack.enter_context(_counting())
        with ThreadPoolExecutor(size) as pool:
            list(pool.map(partial(_work, folder=folder, attempt=driver.attempt), _sessions(size, threading.Event())))
    return counts.total()


def _work(session: ThreadSession, *, folder: RunFolder, attempt: int) -> None:
    staging = Staging.open("benchmark", session, "after")
    writer = GroupWriter.of(folder, attempt, "after")
    take_over(staging, writer, RetentionPolicy(3, "eval_wer"), session, managed_by_service=True)
    assert starting_point(staging, writer, session) is not None
    log = MetricsLog(writer, session.show_from_main)
    for step in range(LINES):
        if session.is_main_process:
            log.write({"step": step})
    log.flush()
    session.barrier()
    staging.release()


def _sessions(size: int, request: threading.Event) -> list[ThreadSession]:
    together, items = threading.Barrier(size), [None] * size
    return [
        ThreadSession(rank, size, rank % RANKS_PER_NODE, together=together, items=items, request=request)
        for rank in range(size)
    ]


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    """Counts the requests to folders while the block runs."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(LocalStorage, name)

        def call(*arguments: Any) -> Any:
            with lock:
                counts[name] += 1
            return method(*arguments)

        return call

    with ExitStack() as stack:
        for name in STORAGE_REQUESTS:
            stack.enter_context(patch.object(LocalStorage, name, counted(name)))
        yield counts


MEASURED = {"requests of a barrier": _barrier, "requests of a vote": _vote, "requests to the storage": _resume}


if __name__ == "__main__":
    sys.exit(main())
