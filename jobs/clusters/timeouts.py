"""Calls that may hang, with a timeout: each runs in a thread."""

from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


class CallTimeoutError(Exception):
    """A call has not returned in time."""


def call_with_timeout(call: Callable[[], Result], timeout_s: float) -> Result:
    """Calls in a daemon thread; raises CallTimeoutError, and abandons the thread, if the call takes too long."""
    results: Queue[Result | BaseException] = Queue()

    def run() -> None:
        try:
            results.put(call())
        except BaseException as error:
            results.put(error)

    Thread(target=run, name="call", daemon=True).start()
    try:
        result = results.get(timeout=timeout_s)
    except Empty:
        raise CallTimeoutError from None
    if isinstance(result, BaseException):
        raise result
    return result
