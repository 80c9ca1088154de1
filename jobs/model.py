"""What the ledger keeps and everybody shows: runs, attempts, events. Frozen; times are seconds since 1970, UTC."""

import base64
import binascii
import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.lifecycle import RunState
from trainers.errors import ConfigError

DEFAULT_QUEUE = "default"
# Exit code of a stopped entrypoint, 128 + SIGTERM: Ray reports none for a job that it stopped.
STOPPED_EXIT_CODE = 143
# Of a cursor: larger integers are no floats, and NaN is not less.
LATEST_S = 2.0**53
# The longest pause before a retry. Seconds.
MAX_BACKOFF_S = 600.0


class AttemptState(StrEnum):
    """Where an attempt is, as far as the ledger knows."""

    SUBMITTING = "SUBMITTING"  # written before the call to Ray, so that an interrupted submission is found again
    SUBMITTED = "SUBMITTED"
    ENDED = "ENDED"


class Cause(StrEnum):
    """Why an attempt ended, told apart because each is treated in its own way."""

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
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Gang(Record):
    """Everything that a run holds at once, all or nothing. Logical resources in Ray's names.

    Attributes:
        num_workers: Training workers; of an elastic run the most, for which it is charged.
        resources_per_worker: What each holds, e.g. {"CPU": 4, "GPU": 1}.
        extra: What is held next to the workers: CPUs for Ray Data.
        min_workers: The fewest workers of an elastic run. None: their number is fixed.
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
    """How far an attempt has come, as it wrote to its status file; one that has not has an empty phase at most.

    `checkpoint_s` is an earlier attempt's, until it has measured its own; `wer` is the last validation's, `wers` those
    of the last ones in their order, `best_wer` that of the best one of the run; of a model that is trained at a shorter
    context than its own, those with `full_context` are of the same at its own. Percent. `restarts` counts how often
    its workers were started again, the last time for `restart_reason`.
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
    eta_s: float | None = None
    checkpoint_s: float | None = None
    workers: int | None = None
    detail: str = ""
    at_s: float = 0.0

    @property
    def shown_wers(self) -> list[tuple[str, float, float | None]]:
        """What each WER that is known is of, itself, and that at the full context: the most telling one first."""
        known = (
            ("test", self.test_wer, self.test_full_context_wer),
            ("best validation", self.best_wer, self.best_full_context_wer),
            ("last validation", self.wer, self.full_context_wer),
        )
        return [(name, wer, full) for name, wer, full in known if wer is not None]

    @property
    def restarts_text(self) -> str:
        """`2 restarts within the attempt, the last after: rank 1 died`; "" where there was none."""
        if not self.restarts:
            return ""
        count, which = ("1 restart", "") if self.restarts == 1 else (f"{self.restarts} restarts", "the last ")
        return f"{count} within the attempt" + (f", {which}after: {self.restart_reason}" if self.restart_reason else "")


class Run(Record):
    """What a user requested, and what has become of it.

    Attributes:
        id: The run's name, unique in a ledger; its attempts are the Ray jobs `<id>-a1`, `<id>-a2`, …
        uid: Unique for ever: tells this run from one of the same name in another ledger.
        priority: Larger goes first within the queue.
        address: URL of the Ray cluster's dashboard.
        config: The one config, defaults and `job` included: validated, admitted, and what its attempts run.
        package: SHA-256 of the zip of the working directory, frozen at submission.
        code: That of the zip of Rayscribe's own code, frozen likewise. None: it starts with the package's task.py.
        gang: What it holds while it runs.
        tags: Free words to find and to account it by.
        depends_on: Runs that must succeed first.
        max_retries: New attempts after failures that may pass.
        reason: One line: what it waits for, does, or ended with.
        attempt: Number of the newest attempt, 0 before the first.
        exit_code: The entrypoint's own, once the run has ended.
        queued_s: Since when it waits; ranks it among runs of the same priority. A retry keeps it.
        not_before_s: A retry waits until then.
        stop_requested_s: When a user requested a stop.
        progress: The newest attempt's latest status.
        version: Counts the changes, so that two writers never overwrite each other.
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
        """What an attempt without a checkpoint starts from."""
        resume = str((self.config.get("run") or {}).get("resume"))
        if resume.startswith("from:"):
            return f"the checkpoint {resume.removeprefix('from:')}"
        return "pretrained weights" if (self.config.get("model") or {}).get("init") == "pretrained" else "scratch"


class Attempt(Record):
    """One Ray job of a run, numbered from 1; `submission_id` is Ray's.

    Attributes:
        gang: What it holds from `created_s` to `ended_s`.
        resume_from: The checkpoint that it was expected to start from, or an older one. None: none was known.
        created_s: When it was decided.
        submitted_s: When Ray had accepted it.
        ended_s: When its end was observed.
        message: One line of Ray's message or of the log.
        last_step: The optimizer step of the newest complete checkpoint at its end. None: none.
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
    """A change that happened to a run, never altered afterwards.

    Attributes:
        number: Grows over all events of a ledger.
        attempt: The attempt it is about, 0 for the run itself.
        state: The run's state after it.
        before: The run's state before it; equal to `state` where only something else happened. None: the first.
        cause: One word for a program: submitted, admitted, ray_submitted, phase, restart, ended, retry, …
        text: One line for a person.
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
    """Which runs are listed; None and () leave nothing out."""

    states: Collection[RunState] = ()
    queue: str | None = None
    user: str | None = None
    tag: str | None = None


ALL_RUNS = RunFilter()


class Page(Record):
    """A part of a list, newest submitted first; the cursor gives the next part. None: this is the last."""

    runs: list[Run]
    next_cursor: str | None


# Lists are newest first: by when a run was submitted, and then by its id.
Position = tuple[float, str]


def position_of(run: Run) -> Position:
    """The place of a run in all lists."""
    return run.submitted_s, run.id


def cursor_after(position: Position) -> str:
    """The cursor of the page that begins behind a position."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> Position | None:
    """The position behind which a page begins; None: the first page.

    Raises:
        ConfigError: no page has ended with this cursor.
    """
    if text is None:
        return None
    try:
        position: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        # No database takes half of a surrogate pair, which JSON can hold.
        json.dumps(position, ensure_ascii=False).encode()
    except (binascii.Error, ValueError, RecursionError):
        position = None
    match position:
        case [int() | float() as submitted_s, str() as run_id] if abs(submitted_s) < LATEST_S:
            return float(submitted_s), run_id
    raise ConfigError(f"cursor {text!r} is not one that a list has ended with: copy it, or leave it out")


class LogLine(Record):
    """A line, and who printed it: `driver` or `rank-<n>`."""

    source: str
    text: str


class LogPage(Record):
    """A part of an attempt's logs; the next one continues from the cursor, unless they are complete (`ended`)."""

    attempt: int
    lines: list[LogLine]
    cursor: str
    ended: bool


class Usage(Record):
    """What attempts have held.

    Attributes:
        key: The run, submission id, user, queue or tag; "" stands for runs without a tag.
        wall_hours: Sum of their durations.
        cpu_hours: Sum of duration × CPUs of the gang, in Ray's logical CPUs.
        gpu_hours: The same of GPUs.
    """

    key: str
    attempts: int
    wall_hours: float
    cpu_hours: float
    gpu_hours: float


def submission_id_of(run_id: str, attempt: int) -> str:
    """Ray's id of an attempt: derived, so that it is found again whatever was cut off."""
    return f"{run_id}-a{attempt}"
