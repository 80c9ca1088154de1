"""Finds the root cause of an error that Ray or torch raised, such as out of memory or a lost node. Pure.

Recognizes errors by the names of their classes, without importing Ray or torch.
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

# Attributes in which Ray's errors store their causes.
CAUSE_ATTRIBUTES = ("cause", "_base_exc", "controller_failure", "health_check_failure", "__cause__")

NODE_CLASSES = {"NodeDiedError", "PreemptionError", "LocalRayletDiedError"}
# Texts of ActorDiedError if its node died first.
NODE_TEXTS = ("its node has died", "node was terminated")
# WorkerGroupStartupFailedError means that a worker died before it began; pickling has lost the cause.
WORKER_CLASSES = {
    *("ActorDiedError", "WorkerCrashedError", "WorkerHealthCheckTimeoutError"),
    *("BrokenProcessPool", "WorkerGroupStartupFailedError"),
}
# Errors of failed calls to a worker, or of other ranks' broken connections to it (gloo or NCCL). If a worker or node is
# lost without a report, there are no other errors.
CONNECTION_CLASSES = {"ActorUnavailableError", "DistNetworkError", "DistBackendError"}
# Messages of pyarrow's filesystems (S3 and Google), through which Ray Train and Ray Data write.
STORAGE_TEXTS = ("AWS Error ", "google::cloud::Status(")
# Ray Train timed out waiting for capacity for the workers. If a node was lost, that is the cause.
START_TIMEOUT_CLASSES = {"WorkerGroupStartupTimeoutError"}
LOADER_TEXT = " in DataLoader worker process "
IMPORT_CLASSES = {"ImportError", "ModuleNotFoundError"}
# Errors that a retry does not fix. Their subclasses, which have other names, may be transient.
PROGRAM_CLASSES = {
    *("AssertionError", "AttributeError", "IndentationError", "IndexError", "KeyError", "NameError", "PicklingError"),
    *("NotImplementedError", "RecursionError", "SyntaxError", "TypeError", "UnboundLocalError", "ValueError"),
    "ZeroDivisionError",
}
# ray.exceptions.OutOfMemoryError is raised by calls to a worker that Ray's memory monitor has killed;
# torch.OutOfMemoryError is CUDA's.
MEMORY_CLASSES = {"OutOfMemoryError", "MemoryError"}
MEMORY_TEXTS = ("CUDA out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
MEMORY_ADVICE = (
    "lower training.per_device_train_batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "set training.gradient_checkpointing: true, or use larger nodes"
)
# Messages of gloo, NCCL and torch's store about a lost peer.
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
    """Returns the Rayscribe error that caused Ray's error, or a new one that describes the failure."""
    found = list(cause_chain(error))
    # Ray also wraps a task's error in a class that derives from RayTaskError and the error's class.
    own = [item for item in found if isinstance(item, RayscribeError) and not name(item).startswith("RayTaskError")]
    if own:
        # Of several ranks' errors, the first is the cause; of several programs' errors, the earliest.
        ends = {item: item.ended_s if isinstance(item, ScriptError) else 0.0 for item in own}
        first = min(own, key=lambda item: (isinstance(item, FollowingError), ends[item]))
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


def _named(error: BaseException, doing: str) -> RayscribeError:
    """Returns the Rayscribe error for an error of another class that does not come from a lost node or worker."""
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
    """Returns True if there are only connection errors; the cluster may report a lost node later."""
    return all(is_connection_error(item) for item in root_errors(error))


def is_start_timeout(error: BaseException) -> bool:
    """Returns True if waiting for capacity for the workers timed out."""
    return any(name(item) in START_TIMEOUT_CLASSES for item in cause_chain(error))


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and all its direct and indirect causes, each once."""
    waiting, seen = [error], set()
    while waiting:
        item = waiting.pop(0)
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += _causes(item)


def root_errors(error: BaseException) -> Iterator[BaseException]:
    """Returns the causes of the error that have no cause themselves."""
    return (item for item in cause_chain(error) if not _causes(item))


def is_memory_error(error: BaseException) -> bool:
    """Returns True if a node or a GPU ran out of memory."""
    # An error with causes may quote their text.
    return name(error) in MEMORY_CLASSES or (not _causes(error) and is_out_of_memory(error))


def _is_lost_node(error: BaseException) -> bool:
    return (
        name(error) in NODE_CLASSES
        or getattr(error, "preempted", False) is True
        or (name(error) == "ActorDiedError" and any(word in str(error) for word in NODE_TEXTS))
    )


@contextlib.contextmanager
def converting_errors() -> Iterator[None]:
    """Converts memory and import errors in a process without Ray; leaves all other errors unchanged."""
    try:
        yield
    except (RuntimeError, MemoryError, ImportError) as error:
        if is_memory_error(error) or isinstance(error, ImportError):
            raise root_cause_of(error) from error
        raise


def is_preemption(error: BaseException) -> bool:
    """Returns True if a node was preempted; Ray Train counts such failures separately."""
    return any(getattr(item, "preempted", False) is True for item in cause_chain(error))


def is_connection_error(error: BaseException) -> bool:
    """Returns True if the error says that a connection broke, but not why."""
    is_broken = isinstance(error, RuntimeError) and is_broken_connection(str(error))
    return is_broken or name(error) in CONNECTION_CLASSES


def name(error: BaseException) -> str:
    """Returns the name of the error's class."""
    return type(error).__name__


def _first_line(error: BaseException) -> str:
    return _text(error).partition("\n")[0]


def _text(error: BaseException) -> str:
    text = str(error).strip()
    # For an error in a data loader's process, torch's text is `Caught TypeError in DataLoader worker process 0.`, the
    # traceback and then the original message.
    return text.rpartition(f"{name(error)}: ")[2] if LOADER_TEXT in text.partition("\n")[0] else text


def last_line(error: BaseException) -> str:
    """Returns the last line of the text, in which Ray says why a worker died, without the common causes it lists."""
    return str(error).strip().rpartition("\n")[2].partition(" Some common causes")[0].strip()


def _causes(error: BaseException) -> list[BaseException]:
    items = [getattr(error, attribute, None) for attribute in CAUSE_ATTRIBUTES]
    items += list(getattr(error, "worker_failures", {}).values())
    return [item for item in items if isinstance(item, BaseException)]


def is_out_of_memory(error: BaseException) -> bool:
    """Returns True if the error itself says that a node or a GPU ran out of memory."""
    return name(error) in MEMORY_CLASSES or any(text in str(error) for text in MEMORY_TEXTS)


def is_broken_connection(text: str) -> bool:
    """Returns True if a text, such as the last lines of a program, contains an error of a broken connection."""
    return _BROKEN.search(text) is not None
