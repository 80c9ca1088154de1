"""Retries transient errors, raises permanent ones at once, and reports the kind of error."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from trainers.errors import StorageError

T = TypeVar("T")

# HTTP statuses of a service that is busy, restarts or was not reached.
TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Explanation:
    """The meaning of an exception for the person who has to fix it.

    A transient error may not occur again later. `kind` is the error that is raised in its place.
    """

    cause: str
    fix: str
    transient: bool = False
    kind: type[StorageError] = StorageError


@dataclass(frozen=True)
class RetryPolicy:
    """Number of attempts of a call, and pauses between them; by default, retries take about 20 seconds.

    Each pause is twice as long as the one before. `part_attempts` are attempts of each part of a large file in a bucket
    within one attempt, so that the complete file is not sent again after one lost part; obstore pauses between them.
    """

    attempts: int = 6
    part_attempts: int = 4
    first_delay_s: float = 1.0
    max_delay_s: float = 20.0

    def delay_s(self, attempt: int) -> float:
        """Returns the pause after attempt `attempt` (from 1): exponential, then shortened at random by up to half."""
        longest_s: float = min(self.max_delay_s, self.first_delay_s * 2.0 ** (attempt - 1))
        # Without jitter, all ranks, which get the same error at once, would also retry at once.
        return longest_s * random.uniform(0.5, 1.0)

    def run(
        self,
        call: Callable[[], T],
        *,
        action: str,
        url: str,
        explain: Callable[[BaseException], Explanation | None],
    ) -> T:
        """Calls `call`, which must be idempotent, and repeats it after transient errors until all attempts are used up.

        `action` (such as "read") and `url` are verb and object of the error message. An exception unknown to `explain`
        is raised unchanged.

        Raises:
            StorageError: A permanent error, or a transient one at the last attempt.
        """
        attempt = 1
        while True:
            try:
                return call()
            except Exception as error:
                found = explain(error)
                if found is None:
                    raise
                if not found.transient or attempt >= self.attempts:
                    tried = f" (tried {attempt} times)" if attempt > 1 else ""
                    raise found.kind(f"cannot {action} {url}: {found.cause}{tried}; {found.fix}") from error
            time.sleep(self.delay_s(attempt))
            attempt += 1


# For the probe of a storage; retries take about three seconds. With only two attempts, a busy service that refuses a
# fifth of the calls would fail every fifth probe.
PROBE_RETRY = RetryPolicy(attempts=5, part_attempts=1, first_delay_s=0.2)
