"""Try again what may pass, fail at once on what will not, and say which it was."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainers.errors import StorageError

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """What an exception means to the person who has to mend it.

    Attributes:
        cause: What is wrong, in words.
        fix: What to do about it.
        transient: Whether the same call may succeed a moment later.
    """

    cause: str
    fix: str
    transient: bool = False


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently a call is tried; the defaults give a fault about 20 seconds to pass.

    Attributes:
        attempts: Tries in all; 1 means no second try.
        part_attempts: Tries of each part of a large S3 file within one attempt, so that one lost part
            does not send the whole file again. Their pauses are botocore's own.
        first_delay_s: The pause after the first try; each later pause is twice as long.
        max_delay_s: No pause is longer.
    """

    attempts: int = 6
    part_attempts: int = 4
    first_delay_s: float = 1.0
    max_delay_s: float = 20.0

    def delay_s(self, attempt: int) -> float:
        """The pause after try number `attempt` (from 1): exponential, with jitter down to its half."""
        longest_s: float = min(self.max_delay_s, self.first_delay_s * 2.0 ** (attempt - 1))
        # Jitter, because all ranks meet the same fault at once and would all come back at once.
        return longest_s * random.uniform(0.5, 1.0)

    def run(
        self,
        call: Callable[[], T],
        *,
        action: str,
        url: str,
        fault_of: Callable[[BaseException], Fault | None],
    ) -> T:
        """Calls `call`, again after each transient fault, until it returns or the attempts are used up.

        Args:
            call: Something that is safe to do twice.
            action: The verb of the error message, such as "read".
            url: The object of the error message.
            fault_of: Reads an exception; None means that it is no storage fault and passes through as it is.

        Raises:
            StorageError: A permanent fault, or a transient one at the last attempt.
        """
        attempt = 1
        while True:
            try:
                return call()
            except Exception as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                if not fault.transient or attempt >= self.attempts:
                    tried = f" (tried {attempt} times)" if attempt > 1 else ""
                    raise StorageError(f"cannot {action} {url}: {fault.cause}{tried}; {fault.fix}") from error
            time.sleep(self.delay_s(attempt))
            attempt += 1
