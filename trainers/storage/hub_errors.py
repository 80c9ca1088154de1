"""Explains errors of the Hugging Face Hub, and of network or disk when reading it, without importing huggingface_hub.

The libraries that read the Hub wrap these errors several times, so all causes of an error are examined.
"""

import errno
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from trainers.distributed.console import show
from trainers.storage.retry import TRANSIENT_STATUSES, Explanation, RetryPolicy

T = TypeVar("T")

# huggingface_hub itself retries each request several times, for some 20 seconds.
HUB_RETRIES = RetryPolicy(attempts=3, first_delay_s=5.0)
TRANSIENT_ERRNOS = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN}
# The names of httpx's base class of network errors, and of huggingface_hub's error in offline mode.
TRANSPORT, OFFLINE = "TransportError", "OfflineModeIsEnabled"
# huggingface_hub's logger of failed requests, and the pattern of its messages.
_RETRIES_OF = "huggingface_hub.utils._http"
_RETRY = re.compile(r"thrown while requesting|^Retrying in |^Rate limited\. Waiting ")
_FIX = "try again later, or give a folder that has the files"


def read_from_hub(call: Callable[[], T], what: str) -> T:
    """Calls a function that reads `what` from the Hub, with retries after transient errors of Hub, network or disk.

    Prints one line about the retries.

    Raises:
        StorageError: The last attempt failed with a transient error. Any other error is raised unchanged.
    """
    with one_line_of_retries(what):
        return HUB_RETRIES.run(call, action="read", url=what, explain=explain_hub_error)


@contextmanager
def one_line_of_retries(what: str) -> Iterator[None]:
    """Returns a context that prints one line in place of all of huggingface_hub's lines about failed requests."""
    told = False

    def is_other(record: logging.LogRecord) -> bool:
        nonlocal told
        if _RETRY.search(record.getMessage()) is None:
            return True
        if not told:
            show(f"{what}: the Hub does not respond; retrying for a minute or two")
        told = True
        return False

    logger = logging.getLogger(_RETRIES_OF)
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def explain_hub_error(error: BaseException) -> Explanation | None:
    """Returns the transient cause of an error; None for a permanent error, such as a name unknown to the Hub."""
    for item in _chain(error):
        status = _own_status(item)
        names = {kind.__name__ for kind in type(item).__mro__}
        if OFFLINE in names or (status is not None and status not in TRANSIENT_STATUSES):
            return None
        if status is not None:
            return Explanation(f"the Hub responds with status {status}", _FIX, transient=True)
        if TRANSPORT in names or isinstance(item, ConnectionError | TimeoutError | socket.gaierror):
            return Explanation(f"no connection ({item})", _FIX, transient=True)
        if isinstance(item, OSError) and item.errno in TRANSIENT_ERRNOS:
            return Explanation(str(item.strerror), _FIX, transient=True)
    return None


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of an error or of its nearest cause with a status; None if none has a status."""
    return next((status for item in _chain(error) if (status := _own_status(item)) is not None), None)


def _own_status(error: BaseException) -> int | None:
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


def is_offline(error: BaseException) -> bool:
    """Returns True if an error is due to huggingface_hub's offline mode (HF_HUB_OFFLINE)."""
    return any(kind.__name__ == OFFLINE for item in _chain(error) for kind in type(item).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    item: BaseException | None = error
    while item is not None:
        yield item
        item = item.__cause__ or (None if item.__suppress_context__ else item.__context__)
