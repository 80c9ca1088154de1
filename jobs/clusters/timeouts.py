"""Questions that may hang: asked in a thread, and given up after a deadline."""

from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


class CallTimeoutError(Exception):
    """A question has hung for longer than its deadline."""


def call_with_timeout(question: Callable[[], Answer], deadline_s: float) -> Answer:
    """Asks in a thread, which is left behind if it hangs, and does not keep the process from ending.

    Raises:
        CallTimeoutError: there was none in time.
    """
    answers: Queue[Answer | BaseException] = Queue()

    def ask() -> None:
        try:
            answers.put(question())
        except BaseException as error:
            answers.put(error)

    Thread(target=ask, name="question", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline_s)
    except Empty:
        raise CallTimeoutError from None
    if isinstance(answer, BaseException):
        raise answer
    return answer
