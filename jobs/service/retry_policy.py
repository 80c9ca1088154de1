"""Decides whether an ended attempt is retried, and after how long. Pure; the table RULES is the policy.

An attempt made progress if its newest complete checkpoint has a later step; ends *in a row* are those since then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from jobs.model import MAX_BACKOFF_S, Attempt, Cause, RunState
from jobs.service.failure_causes import is_transient
from trainers.config.wording import format_duration

# Lost nodes do not count as retries, but a run that ends this often without a new step has another problem.
MAX_ATTEMPTS_WITHOUT_PROGRESS = 100


@dataclass(frozen=True)
class Rule:
    """Retry rule for one cause.

    Attributes:
        what: What happened, as text.
        retried: True if another attempt may succeed.
        counts: True if a retry is one of the run's `max_retries`; if not, the run waits as PREEMPTED.
        first_backoff_s: Pause before the first retry; doubles with each further end in a row.
        max_in_a_row: Largest number of retries in a row for this cause. None for no limit of its own.
        advice: What the user can do if there is no retry.
    """

    what: str
    retried: bool = True
    counts: bool = True
    first_backoff_s: float = 10.0
    max_backoff_s: float = MAX_BACKOFF_S
    max_in_a_row: int | None = None
    advice: str = ""


# fmt: off
RULES: dict[Cause, Rule] = {
    Cause.NODE_LOST: Rule("a node was lost", counts=False, max_backoff_s=300),
    Cause.CLUSTER_LOST: Rule("the cluster was restarted, or no longer knows the job", counts=False, max_backoff_s=300),
    Cause.WORKER_LOST: Rule("a training worker died", advice="read the workers' logs"),
    Cause.DRIVER_KILLED: Rule("the entrypoint was killed", advice="its node may be short of memory"),
    Cause.STORAGE: Rule("the storage failed", first_backoff_s=30,
                        advice="check that the storage responds and accepts these credentials"),
    Cause.ENTRYPOINT: Rule("the entrypoint failed", max_in_a_row=1, advice="read the driver's log"),
    Cause.ENVIRONMENT: Rule("the runtime environment could not be set up", first_backoff_s=30, max_in_a_row=1,
                            advice="check job.runtime_env, and that nodes can connect to the package index"),
    Cause.OUT_OF_MEMORY: Rule("memory ran out", first_backoff_s=30, max_in_a_row=1,
                              advice="lower training.per_device_train_batch_size and raise "
                                     "training.gradient_accumulation_steps by the same factor, or set "
                                     "training.gradient_checkpointing: true"),
    Cause.USER_ERROR: Rule("a retry would fail in the same way", retried=False,
                           advice="fix it, and submit the run under another name; or, if the data or the cluster "
                                  "was fixed, rayscribe resume"),
    Cause.FENCED: Rule("a newer attempt has superseded this one", retried=False,
                       advice="another ledger has a run of this name with this run folder: stop one of them"),
    Cause.STOPPED: Rule("stopped", retried=False),
}
# fmt: on


@dataclass(frozen=True)
class RetryDecision:
    """The decision for a run whose attempt has ended; before a retry, it is RETRYING or PREEMPTED for `backoff_s`."""

    retry: bool
    state: RunState
    backoff_s: float
    reason: str


def decide_retry(attempts: Sequence[Attempt], max_retries: int) -> RetryDecision:
    """Decides whether the last of `attempts` is retried; these are all since a user last submitted or resumed."""
    last = attempts[-1]
    assert last.cause is not None
    if last.cause == Cause.SUCCEEDED:
        return RetryDecision(False, RunState.SUCCEEDED, 0.0, "exit code 0")
    rule = RULES[last.cause]
    code = f" with exit code {last.exit_code}" if last.exit_code is not None else ""
    what = f"{rule.what}{code}" + (f": {last.message}" if last.message else "")
    repeats = sum(1 for _ in takewhile(lambda earlier: _same_failure(earlier, last), _since_last_progress(attempts)))
    counted = sum(attempt.cause in RULES and RULES[attempt.cause].counts for attempt in attempts)
    no_retry = _why_no_retry(attempts, rule, repeats, counted, max_retries)
    if no_retry is not None:
        state = RunState.STOPPED if last.cause == Cause.STOPPED else RunState.FAILED
        return RetryDecision(False, state, 0.0, " · ".join(part for part in (what + no_retry, rule.advice) if part))
    backoff_s = min(rule.first_backoff_s * 2.0 ** (repeats - 1), rule.max_backoff_s)
    state = RunState.RETRYING if rule.counts else RunState.PREEMPTED
    left = f"retry {counted} of {max_retries}" if rule.counts else "not counted as a retry"
    return RetryDecision(True, state, backoff_s, f"{what}; retry in {format_duration(backoff_s)}, {left}")


def _why_no_retry(attempts: Sequence[Attempt], rule: Rule, repeats: int, counted: int, max_retries: int) -> str | None:
    last = attempts[-1]
    if not rule.retried:
        return ""
    if last.cause == Cause.ENVIRONMENT and not is_transient(last.message):
        return ", and a retry would not change that"
    if rule.max_in_a_row is not None and repeats > rule.max_in_a_row:
        return f", {repeats} times in the same way and at the same step"
    if rule.counts and counted > max_retries:
        return f"; job.max_retries {max_retries} is used up"
    idle = sum(1 for _ in _since_last_progress(attempts))
    if idle > MAX_ATTEMPTS_WITHOUT_PROGRESS:
        return f", and {idle} attempts made no progress"
    return None


def _since_last_progress(attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    last = attempts[-1]
    return takewhile(lambda attempt: (attempt.last_step or 0) >= (last.last_step or 0), reversed(attempts))


def _same_failure(one: Attempt, other: Attempt) -> bool:
    """Returns True if two attempts ended in the same way; for Cause.ENTRYPOINT, with the same exit code."""
    return one.cause == other.cause and (one.cause != Cause.ENTRYPOINT or one.exit_code == other.exit_code)
