"""What stands behind an error that Ray or torch raised: one of our own, lost memory, a lost node, a lost worker. Pure.

Errors are told by the names of their classes, so that neither Ray nor torch is loaded to read them.
"""

import contextlib
from collections.abc import Iterator

from trainers.distributed.out_of_memory import ADVICE, CLASSES, is_out_of_memory
from trainers.errors import LostNodeError, LostWorkerError, MemoryExhaustedError, RayscribeError

# Where Ray keeps what stands behind an error of its own.
BEHIND = ("cause", "_base_exc", "controller_failure", "health_check_failure", "__cause__")

NODE_CLASSES = {"NodeDiedError", "PreemptionError", "LocalRayletDiedError"}
# The end of ActorDiedError's text where the node went first.
NODE_TEXTS = ("its node has died", "node was terminated")
WORKER_CLASSES = {"ActorDiedError", "WorkerCrashedError", "WorkerHealthCheckTimeoutError"}
# What remains to be seen of a worker or a node that went without a word: a call that found nobody, and the other
# ranks' broken connections to it, over gloo or NCCL.
SILENT_CLASSES = {"ActorUnavailableError", "DistNetworkError", "DistBackendError"}
SILENT_TEXTS = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "NCCL communicator")


def error_behind(error: BaseException, *, lost_nodes: int = 0, doing: str = "training") -> RayscribeError:
    """Our own error somewhere behind what Ray raised, or one of ours that says what has happened.

    Args:
        error: What was raised.
        lost_nodes: How many nodes the cluster has lost since the workers started.
        doing: What was being done, for the words.
    """
    found = list(chain(error))
    ours = next((item for item in found if isinstance(item, RayscribeError)), None)
    if ours is not None:
        return ours
    memory = next(filter(is_memory, found), None)
    if memory is not None:
        return MemoryExhaustedError(f"{doing}: out of memory: {first_line(memory)}; {ADVICE}")
    node = next(filter(is_node, found), None)
    if node is not None:
        return LostNodeError(f"{doing}: a node was lost: {last_line(node)}")
    worker = next(filter(is_worker, found), None)
    spoken = next((item for item in leaves(error) if not is_silent(item)), None)
    if worker is None and spoken is not None:
        return RayscribeError(f"{doing} failed: {name(spoken)}: {first_line(spoken)}")
    unheard = (item for item in found if name(item) in SILENT_CLASSES)
    gone = worker or next(unheard, None) or next(leaves(error))
    if lost_nodes:
        return LostNodeError(f"{doing}: a node was lost, and a worker with it: {last_line(gone)}")
    return LostWorkerError(
        f"{doing}: the process of a worker died: {last_line(gone)} "
        f"If nobody killed it, its node may have run out of memory: look into its kernel log; {ADVICE}"
    )


def is_silence(error: BaseException) -> bool:
    """Whether all that is known is that a worker is gone; whether its node went with it, the cluster may learn yet."""
    return all(is_silent(item) for item in leaves(error))


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that stands behind it, each once."""
    waiting, seen = [error], set()
    while waiting:
        item = waiting.pop(0)
        if id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += _behind(item)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Those behind the error that have nothing behind them."""
    return (item for item in chain(error) if not _behind(item))


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the node or of a GPU."""
    # The text of an error that has others behind it may quote them.
    return name(error) in CLASSES or (not _behind(error) and is_out_of_memory(error))


def is_node(error: BaseException) -> bool:
    """Whether a node is gone, and Ray knows it."""
    return (
        name(error) in NODE_CLASSES
        or is_taken_away(error)
        or (name(error) == "ActorDiedError" and any(word in str(error) for word in NODE_TEXTS))
    )


@contextlib.contextmanager
def naming_memory() -> Iterator[None]:
    """Says of memory that ran out what to do; leaves all other errors as they are.

    Raises:
        MemoryExhaustedError: in place of what torch or Python raised.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_memory(error):
            raise error_behind(error) from error
        raise


def is_preemption(error: BaseException) -> bool:
    """Whether a node was taken away, of which Ray Train keeps its own count."""
    return any(is_taken_away(item) for item in chain(error))


def is_taken_away(error: BaseException) -> bool:
    """Whether the error itself says that a node was taken away."""
    return getattr(error, "preempted", False) is True


def is_worker(error: BaseException) -> bool:
    """Whether a worker's process is gone, and Ray knows it."""
    return name(error) in WORKER_CLASSES


def is_silent(error: BaseException) -> bool:
    """Whether a worker is gone without a word."""
    return name(error) in SILENT_CLASSES or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in SILENT_TEXTS)
    )


def name(error: BaseException) -> str:
    """The name of the error's class."""
    return type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of its text."""
    return str(error).strip().partition("\n")[0]


def last_line(error: BaseException) -> str:
    """The last line of its text, where Ray says why a worker died, without Ray's guesses."""
    return str(error).strip().rpartition("\n")[2].partition(" Some common causes")[0].strip()


def _behind(error: BaseException) -> list[BaseException]:
    items = [getattr(error, attribute, None) for attribute in BEHIND]
    items += list(getattr(error, "worker_failures", {}).values())
    return [item for item in items if isinstance(item, BaseException)]
