"""The root cause of an error that Ray or torch raised: a Rayscribe error, out of memory, a lost node or worker. Pure.

Errors are recognized by the names of their classes, so that neither Ray nor torch is imported.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping

from trainers.errors import (
    FollowingError,
    LostNodeError,
    LostWorkerError,
    MemoryExhaustedError,
    PackageError,
    ProgramError,
    RayscribeError,
    ScriptError,
    StorageError,
)

# Attributes in which Ray's errors hold their causes.
CAUSE_ATTRIBUTES = ("cause", "_base_exc", "controller_failure", "health_check_failure", "__cause__")

NODE_CLASSES = {"NodeDiedError", "PreemptionError", "LocalRayletDiedError"}
# The end of ActorDiedError's text where the node went first.
NODE_TEXTS = ("its node has died", "node was terminated")
# The last one where a worker died before it began; a pickle has lost its cause.
WORKER_CLASSES = {
    "ActorDiedError",
    "WorkerCrashedError",
    "WorkerHealthCheckTimeoutError",
    "BrokenProcessPool",
    "WorkerGroupStartupFailedError",
}
# Connection errors, which are all that is seen if a worker or a node is lost without a report: a failed call to it, and
# the other ranks' broken connections to it, over gloo or NCCL.
CONNECTION_CLASSES = {"ActorUnavailableError", "DistNetworkError", "DistBackendError"}
# Of pyarrow's filesystems, through which Ray Train and Ray Data write: S3's and Google's.
STORAGE_TEXTS = ("AWS Error ", "google::cloud::Status(")
# Ray Train has waited in vain for room for the workers: after a lost node, for that.
START_TIMEOUT_CLASSES = {"WorkerGroupStartupTimeoutError"}
LOADER_TEXT = " in DataLoader worker process "
IMPORT_CLASSES = {"ImportError", "ModuleNotFoundError"}
# Errors that do not pass by themselves; their subclasses have names of their own, and may.
PROGRAM_CLASSES = {
    "AssertionError",
    "AttributeError",
    "IndentationError",
    "IndexError",
    "KeyError",
    "NameError",
    "NotImplementedError",
    "PicklingError",
    "RecursionError",
    "SyntaxError",
    "TypeError",
    "UnboundLocalError",
    "ValueError",
    "ZeroDivisionError",
}
# ray.exceptions.OutOfMemoryError is what calls to a worker raise that Ray's memory monitor has killed;
# torch.OutOfMemoryError is CUDA's.
MEMORY_CLASSES = {"OutOfMemoryError", "MemoryError"}
MEMORY_TEXTS = ("CUDA out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
MEMORY_ADVICE = (
    "lower training.per_device_train_batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "set training.gradient_checkpointing: true, or use larger nodes"
)
# Of gloo, NCCL and torch's store, where the other end is gone.
_BROKEN = re.compile(
    "Connection closed by (remote )?peer|Connection reset by peer|Broken pipe|remote process exit|Socket Timeout"
    r"|NCCL communicator|failed to recv, got 0 bytes|client socket has timed out|Timed out waiting \d+ms"
)


class TooManyFailuresError(Exception):
    """Workers failed more often than `run.max_failures` allows."""

    def __init__(self, worker_failures: Mapping[int, Exception]):
        super().__init__(worker_failures)
        self.worker_failures = dict(worker_failures)

    def __str__(self) -> str:
        return "the workers failed too often"


def root_cause_of(error: BaseException, *, lost_nodes: int = 0, doing: str = "training") -> RayscribeError:
    """The Rayscribe error that caused what Ray raised, or a new one that says what has happened."""
    found = list(cause_chain(error))
    # Ray raises a task's error as one of its own that is an instance of the error's class as well, with a traceback.
    own = [item for item in found if isinstance(item, RayscribeError) and not name(item).startswith("RayTaskError")]
    if own:
        first = min(own, key=_precedence)
        return type(first)(_text(first)) if LOADER_TEXT in str(first) else first
    memory = next(filter(is_memory_error, found), None)
    if memory is not None:
        return MemoryExhaustedError(f"{doing}: out of memory: {_first_line(memory)}; {MEMORY_ADVICE}")
    node = next(filter(_is_lost_node, found), None)
    if node is not None:
        return LostNodeError(f"{doing}: a node was lost: {last_line(node)}")
    worker = next((item for item in found if name(item) in WORKER_CLASSES), None)
    follows = START_TIMEOUT_CLASSES if lost_nodes else set()
    others = (item for item in root_errors(error) if not is_connection_error(item) and name(item) not in follows)
    other = next(others, None)
    if worker is None and other is not None:
        return _named(other, doing)
    connection_errors = (item for item in found if name(item) in CONNECTION_CLASSES)
    gone = worker or next(connection_errors, None) or next(root_errors(error))
    if lost_nodes:
        return LostNodeError(f"{doing}: a node was lost, and a worker with it: {last_line(gone)}")
    return LostWorkerError(
        f"{doing}: the process of a worker died: {last_line(gone)} "
        f"If it was not killed on purpose, its node may have run out of memory: check its kernel log; {MEMORY_ADVICE}"
    )


def _precedence(error: RayscribeError) -> tuple[bool, float]:
    """Of the errors of several ranks the first in this order is the cause: of programs, the one that failed first."""
    return isinstance(error, FollowingError), error.ended_s if isinstance(error, ScriptError) else 0.0


def _named(error: BaseException, doing: str) -> RayscribeError:
    """The Rayscribe error for one of another class that no loss explains."""
    if isinstance(error, OSError) and any(text in str(error) for text in STORAGE_TEXTS):
        return StorageError(f"{doing}: the storage failed: {_first_line(error)}; check the network and the service")
    if name(error) in IMPORT_CLASSES:
        return PackageError(
            f"{doing}: {name(error)}: {_first_line(error)}; install it on each node (in a job: job.runtime_env.pip), "
            "in the version of constraints.txt"
        )
    kind = ProgramError if name(error) in PROGRAM_CLASSES else RayscribeError
    return kind(f"{doing} failed: {name(error)}: {_first_line(error)}")


def only_connection_errors(error: BaseException) -> bool:
    """Whether there are only connection errors; the cluster may report later that a node was lost."""
    return all(is_connection_error(item) for item in root_errors(error))


def is_start_timeout(error: BaseException) -> bool:
    """Whether there was no room for the workers in time."""
    return any(name(item) in START_TIMEOUT_CLASSES for item in cause_chain(error))


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all its direct and indirect causes, each once."""
    waiting, seen = [error], set()
    while waiting:
        item = waiting.pop(0)
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += _causes(item)


def root_errors(error: BaseException) -> Iterator[BaseException]:
    """The causes of the error that have no cause themselves."""
    return (item for item in cause_chain(error) if not _causes(item))


def is_memory_error(error: BaseException) -> bool:
    """Whether memory ran out, of the node or of a GPU."""
    # The text of an error that has causes may quote them.
    return name(error) in MEMORY_CLASSES or (not _causes(error) and is_out_of_memory(error))


def _is_lost_node(error: BaseException) -> bool:
    return (
        name(error) in NODE_CLASSES
        or _is_preempted(error)
        or (name(error) == "ActorDiedError" and any(word in str(error) for word in NODE_TEXTS))
    )


@contextlib.contextmanager
def converting_errors() -> Iterator[None]:
    """Converts what a process without Ray has advice for; leaves all other errors as they are.

    Raises:
        MemoryExhaustedError: instead of the error of torch or Python.
        PackageError: instead of an error of an import.
    """
    try:
        yield
    except (RuntimeError, MemoryError, ImportError) as error:
        if is_memory_error(error) or isinstance(error, ImportError):
            raise root_cause_of(error) from error
        raise


def is_preemption(error: BaseException) -> bool:
    """Whether a node was preempted; Ray Train counts such failures separately."""
    return any(_is_preempted(item) for item in cause_chain(error))


def _is_preempted(error: BaseException) -> bool:
    return getattr(error, "preempted", False) is True


def is_connection_error(error: BaseException) -> bool:
    """Whether it is a broken connection, without the reason for it."""
    is_broken = isinstance(error, RuntimeError) and is_broken_connection(str(error))
    return is_broken or name(error) in CONNECTION_CLASSES


def name(error: BaseException) -> str:
    """The name of the error's class."""
    return type(error).__name__


def _first_line(error: BaseException) -> str:
    return _text(error).partition("\n")[0]


def _text(error: BaseException) -> str:
    text = str(error).strip()
    # Of a loader's process torch says `Caught TypeError in DataLoader worker process 0.`, the traceback, then what it
    # was.
    return text.rpartition(f"{name(error)}: ")[2] if LOADER_TEXT in text.partition("\n")[0] else text


def last_line(error: BaseException) -> str:
    """The last line of its text, in which Ray gives the reason of a worker's death, without Ray's guesses."""
    return str(error).strip().rpartition("\n")[2].partition(" Some common causes")[0].strip()


def _causes(error: BaseException) -> list[BaseException]:
    items = [getattr(error, attribute, None) for attribute in CAUSE_ATTRIBUTES]
    items += list(getattr(error, "worker_failures", {}).values())
    return [item for item in items if isinstance(item, BaseException)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error itself says that memory ran out, of the node or of a GPU."""
    return type(error).__name__ in MEMORY_CLASSES or any(text in str(error) for text in MEMORY_TEXTS)


def is_broken_connection(text: str) -> bool:
    """Whether a text, such as the last lines of a program, has such an error."""
    return _BROKEN.search(text) is not None
