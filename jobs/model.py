"""Records that the ledger stores and clients show: runs, their states, attempts, events. Frozen; seconds since 1970."""

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from trainers.errors import ConfigError

DEFAULT_QUEUE = "default"
# Exit code of a stopped entrypoint, 128 + SIGTERM, since Ray reports none for a job that it stopped.
STOPPED_EXIT_CODE = 143
# Limit of a cursor's time: larger integers cannot be exact floats, and NaN does not compare as less.
LATEST_S = 2.0**53
# The longest pause before a retry. Seconds.
MAX_BACKOFF_S = 600.0


class RunState(StrEnum):
    """State of a run, which has a line with its reason; LIFE has the allowed transitions.

    A run waits to be admitted, then one of its attempts holds the gang, then the run waits again or has ended.
    """

    QUEUED = "QUEUED"
    SETTING_UP = "SETTING_UP"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    PREPARING_DATA = "PREPARING_DATA"
    TRAINING = "TRAINING"
    EVALUATING = "EVALUATING"
    RETRYING = "RETRYING"
    PREEMPTED = "PREEMPTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def ended(self) -> bool:
        """True if the run has ended, and only a user can resume it."""
        return self in ENDED

    @property
    def waiting(self) -> bool:
        """True if the run waits to be admitted, and holds nothing of the cluster."""
        return self in WAITING

    @property
    def holding(self) -> bool:
        """True if an attempt of the run holds its gang."""
        return self in HOLDING


WAITING = frozenset({RunState.QUEUED, RunState.RETRYING, RunState.PREEMPTED})
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})
HOLDING = frozenset(RunState) - WAITING - ENDED

# The next states that a run may have; staying is always allowed.
LIFE: Mapping[RunState, frozenset[RunState]] = {
    **dict.fromkeys(WAITING, frozenset({RunState.SETTING_UP, RunState.FAILED, RunState.STOPPED})),
    # Phases come in any order, since they are observed late or not at all, and workers may restart.
    **dict.fromkeys(HOLDING, HOLDING | ENDED | {RunState.RETRYING, RunState.PREEMPTED}),
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.STOPPED: frozenset({RunState.QUEUED}),
}


def may_follow(before: RunState, after: RunState) -> bool:
    """Returns True if a run in state `before` may change to state `after`."""
    return before == after or after in LIFE[before]


def name_is_taken(run_id: str, state: RunState) -> str:
    """Returns the message for a new run that has the name of a known run."""
    resume = f"continue it (`rayscribe resume {run_id}`), or " if RunState.QUEUED in LIFE[state] else ""
    return f"run {run_id} exists already, {state}: {resume}use another name (--set run.name=…)"


class AttemptState(StrEnum):
    """State of an attempt in the ledger."""

    SUBMITTING = "SUBMITTING"  # written before the call to Ray, so that an interrupted submission is found again
    SUBMITTED = "SUBMITTED"
    ENDED = "ENDED"


class Cause(StrEnum):
    """Cause of an attempt's end; `retry_policy.RULES` has the rule for each."""

    SUCCEEDED = "SUCCEEDED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_LOST = "NODE_LOST"  # a node died or was preempted
    CLUSTER_LOST = "CLUSTER_LOST"  # the cluster no longer knows the job
    WORKER_LOST = "WORKER_LOST"  # a training worker's process died more often than run.max_failures allows
    DRIVER_KILLED = "DRIVER_KILLED"  # the entrypoint was killed by a signal that Rayscribe did not send
    ENVIRONMENT = "ENVIRONMENT"  # the runtime_env could not be set up
    STORAGE = "STORAGE"
    USER_ERROR = "USER_ERROR"  # config, data, resume, resources, scoring, packages: a retry would fail in the same way
    ENTRYPOINT = "ENTRYPOINT"  # any other exit code of the entrypoint
    STOPPED = "STOPPED"  # by a user
    FENCED = "FENCED"  # a newer attempt superseded it


class Record(BaseModel):
    """A frozen record; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gang(Record):
    """All resources that a run holds at once, all or nothing. Logical resources with Ray's names.

    Attributes:
        num_workers: Number of training workers; for an elastic run the largest, which counts in its usage.
        resources_per_worker: Resources of each worker, e.g. {"CPU": 4, "GPU": 1}.
        extra: Resources in addition to the workers', e.g. CPUs for Ray Data.
        min_workers: Smallest number of workers of an elastic run. None if the number is fixed.
    """

    num_workers: int
    resources_per_worker: dict[str, float]
    extra: dict[str, float] = Field(default_factory=dict)
    min_workers: int | None = None

    @property
    def total(self) -> dict[str, float]:
        each, extra = self.resources_per_worker, self.extra
        return {name: self.num_workers * each.get(name, 0.0) + extra.get(name, 0.0) for name in sorted({*each, *extra})}


class Progress(Record):
    """Progress of an attempt, from its status file; `phase` is "" until the file exists.

    `checkpoint_s` is from an earlier attempt until this one has measured it. `wer` is from the last validation, `wers`
    are from the last validations in order, `best_wer` is from the run's best validation; all in percent. For a model
    that is trained at a shorter context than its own, fields with `full_context` are at its own. Fields with `base` are
    of the weights that the run began with. `restarts` is the number of restarts of the workers, `restart_reason` the
    reason of the last.
    """

    phase: str
    restarts: int = 0
    restart_reason: str = ""
    step: int | None = None
    max_steps: int | None = None
    loss: float | None = None
    wer: float | None = None
    full_context_wer: float | None = None
    wers: tuple[float, ...] = ()
    best_wer: float | None = None
    best_full_context_wer: float | None = None
    test_wer: float | None = None
    test_full_context_wer: float | None = None
    base_wer: float | None = None
    base_full_context_wer: float | None = None
    base_test_wer: float | None = None
    base_test_full_context_wer: float | None = None
    eta_s: float | None = None
    checkpoint_s: float | None = None
    workers: int | None = None
    detail: str = ""
    at_s: float = 0.0

    @property
    def shown_wers(self) -> list[tuple[str, float, float | None, float | None]]:
        """Known WERs, most significant first: name of the set, WER, WER at the full context, WER before the training.

        The third is None if the contexts are the same; the fourth is at the longer context, and None if not known.
        """
        base = (self.base_wer, self.base_full_context_wer)
        base_test = (self.base_test_wer, self.base_test_full_context_wer)
        known = (
            ("test", self.test_wer, self.test_full_context_wer, base_test),
            ("best validation", self.best_wer, self.best_full_context_wer, base),
            ("last validation", self.wer, self.full_context_wer, base),
        )
        return [(name, wer, full, before[full is not None]) for name, wer, full, before in known if wer is not None]

    @property
    def restarts_text(self) -> str:
        """A text such as `2 restarts within the attempt, the last after: rank 1 died`; "" without a restart."""
        if not self.restarts:
            return ""
        count, which = ("1 restart", "") if self.restarts == 1 else (f"{self.restarts} restarts", "the last ")
        return f"{count} within the attempt" + (f", {which}after: {self.restart_reason}" if self.restart_reason else "")


class Run(Record):
    """A run: what a user requested, and its state.

    Attributes:
        id: The run's name, unique in a ledger; its attempts are the Ray jobs `<id>-a1`, `<id>-a2`, …
        uid: Globally unique id; differs from that of a run with the same name in another ledger.
        priority: Priority in the queue; the largest goes first.
        address: URL of the Ray cluster's dashboard, or cluster://NAME.
        config: The validated config, with defaults and `job`, which all attempts use.
        package: SHA-256 of the zip of the working directory at submission.
        code: SHA-256 of the zip of Rayscribe's own code at submission. None if the package has a task.py.
        gang: Resources that the run holds while an attempt is active.
        tags: Words for filters and accounting.
        depends_on: Runs that must succeed first.
        max_retries: Largest number of new attempts after transient failures.
        reason: One line with what the run waits for, does, or ended with.
        attempt: Number of the newest attempt, 0 before the first.
        exit_code: Exit code of the entrypoint, once the run has ended.
        queued_s: Time since which the run waits; ranks runs of the same priority. A retry keeps it.
        not_before_s: Time until which a retry waits.
        stop_requested_s: Time at which a user requested a stop.
        progress: Latest status of the newest attempt.
        version: Number of changes, so that two writers never overwrite each other.
    """

    id: str
    uid: str
    user: str
    queue: str
    priority: int
    address: str
    config: dict[str, Any]
    package: str
    code: str | None = None
    gang: Gang
    tags: list[str]
    depends_on: list[str]
    max_retries: int
    run_folder: str
    state: RunState = RunState.QUEUED
    reason: str = ""
    attempt: int = 0
    exit_code: int | None = None
    submitted_s: float
    queued_s: float
    updated_s: float
    ended_s: float | None = None
    not_before_s: float | None = None
    stop_requested_s: float | None = None
    progress: Progress | None = None
    version: int = 0

    @property
    def beginning(self) -> str:
        """Text for the start of an attempt without a checkpoint: pretrained weights, another checkpoint, or scratch."""
        resume = str((self.config.get("run") or {}).get("resume"))
        if resume.startswith("from:"):
            return f"the checkpoint {resume.removeprefix('from:')}"
        return "pretrained weights" if (self.config.get("model") or {}).get("init") == "pretrained" else "scratch"


class Attempt(Record):
    """One Ray job of a run, numbered from 1; `submission_id` is Ray's.

    Attributes:
        gang: Resources held from `created_s` to `ended_s`.
        resume_from: The checkpoint from which it should start; it may start from an older one. None if none is known.
        created_s: Time of the decision to start the attempt.
        submitted_s: Time at which Ray had accepted the job.
        ended_s: Time at which its end was observed.
        message: One line of Ray's message or of the log.
        last_step: Optimizer step of the newest complete checkpoint at its end. None if there is none.
    """

    run_id: str
    number: int
    submission_id: str
    state: AttemptState
    gang: Gang
    resume_from: str | None = None
    created_s: float
    submitted_s: float | None = None
    ended_s: float | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    message: str = ""
    last_step: int | None = None

    def duration_s(self, now_s: float) -> float:
        return max(0.0, (self.ended_s if self.ended_s is not None else now_s) - self.created_s)


class Event(Record):
    """A change of a run; events are never altered.

    Attributes:
        number: Number that increases over all events of a ledger.
        attempt: Number of the attempt; 0 before the first.
        state: The run's state after the change.
        before: The run's state before the change; equal to `state` if that did not change. None for the first event.
        cause: One word for programs: submitted, admitted, ray_submitted, phase, restart, ended, retry, …
        text: One line for people.
    """

    number: int
    run_id: str
    attempt: int
    at_s: float
    state: RunState
    before: RunState | None
    cause: str
    text: str


UsageBy = Literal["run", "attempt", "user", "queue", "tag"]


@dataclass(frozen=True)
class RunFilter:
    """Filters of a list of runs; None and () do not filter."""

    states: Collection[RunState] = ()
    queue: str | None = None
    user: str | None = None
    tag: str | None = None


ALL_RUNS = RunFilter()


class Page(Record):
    """A page of a list, newest first. `next_cursor` requests the next page; it is None on the last page."""

    runs: list[Run]
    next_cursor: str | None


# Position in lists, which are newest first: time of submission, then id.
Position = tuple[float, str]
_POSITION = TypeAdapter[Position](
    tuple[Annotated[float, Field(gt=-LATEST_S, lt=LATEST_S)], str], config={"strict": True}
)


def position_of(run: Run) -> Position:
    """Returns the position of a run in all lists."""
    return run.submitted_s, run.id


def cursor_after(position: Position) -> str:
    """Returns the cursor of the page that begins after a position."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> Position | None:
    """Returns the position after which a page begins; None for the first page.

    Raises:
        ConfigError: the text is not a cursor.
    """
    if text is None:
        return None
    try:
        return _POSITION.validate_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        raise ConfigError(f"cursor {text!r} is not the cursor of a list: copy it, or leave it out") from None


class LogLine(Record):
    """A line of a log, and its source: `driver` or `rank-<n>`."""

    source: str
    text: str


class LogPage(Record):
    """A part of an attempt's logs; the next part continues from `cursor`, unless the logs are complete (`ended`)."""

    attempt: int
    lines: list[LogLine]
    cursor: str
    ended: bool


class Usage(Record):
    """Resources that attempts have held.

    Attributes:
        key: The run, submission id, user, queue or tag; "" for runs without a tag.
        wall_hours: Sum of the attempts' durations.
        cpu_hours: Sum of duration × CPUs of the gang, in Ray's logical CPUs.
        gpu_hours: Sum of duration × GPUs of the gang.
    """

    key: str
    attempts: int
    wall_hours: float
    cpu_hours: float
    gpu_hours: float


def submission_id_of(run_id: str, attempt: int) -> str:
    """Returns Ray's id of an attempt; derived, so that an interrupted submission is found again."""
    return f"{run_id}-a{attempt}"
