"""Calls that may hang: each runs in a daemon thread, which is abandoned after a timeout."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


class CallTimeoutError(Exception):
    """A call has not returned in time."""


def in_thread(call: Callable[[], Result]) -> Future[Result]:
    """Starts a call in a daemon thread, which does not delay exit; returns a future with its result or error."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="call", daemon=True).start()
    return future


def call_with_timeout(call: Callable[[], Result], timeout_s: float) -> Result:
    """Calls in a daemon thread; raises CallTimeoutError, and abandons the thread, if the call takes too long."""
    future = in_thread(call)
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():  # the call itself has raised it
            return future.result()
        raise CallTimeoutError from None
