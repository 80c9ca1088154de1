"""What errors of the Hugging Face Hub, and of the network or disk on the way to its files, mean; imports nothing of it.

The libraries that read the Hub wrap these errors several times, so all causes of an error are looked at.
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

# huggingface_hub tries each request several times itself, for some 20 seconds.
HUB_RETRIES = RetryPolicy(attempts=3, first_delay_s=5.0)
TRANSIENT_ERRNOS = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN}
# httpx's base of what happens between two hosts, and what huggingface_hub raises in offline mode.
TRANSPORT, OFFLINE = "TransportError", "OfflineModeIsEnabled"
# The module of huggingface_hub that tells of requests that failed, and how it does.
_RETRIES_OF = "huggingface_hub.utils._http"
_RETRY = re.compile(r"thrown while requesting|^Retrying in |^Rate limited\. Waiting ")
_FIX = "try again later, or give a folder that has the files"


def read_from_hub(call: Callable[[], T], what: str) -> T:
    """Calls a function that reads `what` from the Hub, again after transient errors of the Hub, network or disk.

    One line says that it is asked again.

    Raises:
        StorageError: such an error at the last try. Any other error is raised as it is.
    """
    with one_line_of_retries(what):
        return HUB_RETRIES.run(call, action="read", url=what, explain=explain_hub_error)


@contextmanager
def one_line_of_retries(what: str) -> Iterator[None]:
    """Within it, huggingface_hub's two lines for each request that failed are one of ours, the first time."""
    told = False

    def is_other(record: logging.LogRecord) -> bool:
        nonlocal told
        if _RETRY.search(record.getMessage()) is None:
            return True
        if not told:
            show(f"{what}: the Hub does not respond, and is asked again for a minute or two")
        told = True
        return False

    logger = logging.getLogger(_RETRIES_OF)
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def explain_hub_error(error: BaseException) -> Explanation | None:
    """The transient cause of an error; None for a permanent one, such as a name that the Hub does not know."""
    for item in _chain(error):
        status = getattr(getattr(item, "response", None), "status_code", None)
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


def is_offline(error: BaseException) -> bool:
    """Whether an error says that huggingface_hub was told to ask nobody (HF_HUB_OFFLINE)."""
    return any(kind.__name__ == OFFLINE for item in _chain(error) for kind in type(item).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    item: BaseException | None = error
    while item is not None:
        yield item
        item = item.__cause__ or (None if item.__suppress_context__ else item.__context__)
