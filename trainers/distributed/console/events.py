"""Events of a running command. A plain string is an event, too: a line for the user.

`View` is the state of a command after its events. Pure, except for the clock of a progress counter.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

# Seconds between two progress updates on a terminal.
SHOWN_EVERY_S = 0.5
TRAIN = "train"


@dataclass(frozen=True)
class Stage:
    """The command enters a stage: its name, and what it does there, as after `still` in messages.

    If `is_told` is false, a log has no line for the stage, since the work in it prints its own.
    """

    name: str
    doing: str
    is_told: bool = True


@dataclass(frozen=True)
class StageEnded:
    """The stage has ended; the next output comes from elsewhere, such as a job whose log is followed."""


@dataclass(frozen=True)
class Counted:
    """Progress: the number of completed units of a total, the seconds taken, and a note for the line.

    A log prints only events with `is_logged`; a terminal shows all of them.
    """

    what: str
    done: int
    total: int
    unit: str
    took_s: float
    note: str = ""
    is_logged: bool = True
    has_ended: bool = False

    @property
    def per_s(self) -> float:
        return self.done / max(self.took_s, 1e-9)

    @property
    def eta_s(self) -> float:
        return (self.total - self.done) / max(self.per_s, 1e-9)


@dataclass(frozen=True)
class DataFound:
    """The data of a run is prepared and selected; has a description, and the number of quarantined rows."""

    text: str
    quarantined: int


@dataclass(frozen=True)
class TrainingBegan:
    """The worker group starts training; has a description, and the first and the last step."""

    text: str
    workers: int
    step: int
    max_steps: int


@dataclass(frozen=True)
class Stepped:
    """An optimizer step is completed."""

    step: int
    max_steps: int
    eta_s: float | None = None


@dataclass(frozen=True)
class Logged:
    """The mean loss of the steps since the last such event, and their speed; `further` has metrics by their titles."""

    step: int
    max_steps: int
    epoch: float
    loss: float
    clips_per_s: float
    audio_s_per_s: float
    eta_s: float
    further: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Validated:
    """The validation set is scored after a step; has error rates in percent, and a line of text."""

    step: int
    max_steps: int
    rates: Mapping[str, float]
    text: str


@dataclass(frozen=True)
class Finished:
    """The command has completed; has its result in one line, and the folder of the result.

    `verdicts` are comparisons with the initial weights, as in result.json.
    """

    text: str
    folder: str
    verdicts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Event = str | Stage | StageEnded | Counted | DataFound | TrainingBegan | Stepped | Logged | Validated | Finished
# Names of events in JSON lines.
NAMES: Mapping[type, str] = {
    str: "line",
    Stage: "stage",
    StageEnded: "stage ended",
    Counted: "progress",
    DataFound: "data",
    TrainingBegan: "training",
    Stepped: "step",
    Logged: "loss",
    Validated: "validation",
    Finished: "finished",
}


def content_of(event: Event) -> dict[str, Any]:
    """Returns the fields of an event for JSON, its name first."""
    fields = {"text": event} if isinstance(event, str) else asdict(event)
    of_logs = ("is_told", "is_logged")
    return {"event": NAMES[type(event)], **{name: value for name, value in fields.items() if name not in of_logs}}


class ProgressCounter:
    """Counts units of `what`; shows progress at most every `SHOWN_EVERY_S`, in a log at most every `every_s`."""

    def __init__(
        self,
        what: str,
        *,
        total: int,
        unit: str,
        show: Callable[[Counted], None],
        every_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._what, self._total, self._unit, self._show, self._clock = what, total, unit, show, clock
        self._start = self._logged = self._shown = clock()
        self._every_s, self._count, self._note = every_s, 0, ""

    def advance(self, count: int, note: str = "") -> None:
        """Counts further units; `note` is appended to the line."""
        self._count, self._note, now = self._count + count, note, self._clock()
        is_logged = now - self._logged >= self._every_s
        if self._count < self._total and (is_logged or now - self._shown >= SHOWN_EVERY_S):
            self._shown = now
            self._logged = now if is_logged else self._logged
            self._show(self._counted(now, is_logged=is_logged))

    def done(self) -> None:
        self._show(self._counted(self._clock(), has_ended=True))

    def _counted(self, now: float, *, is_logged: bool = True, has_ended: bool = False) -> Counted:
        took_s = now - self._start
        return Counted(self._what, self._count, self._total, self._unit, took_s, self._note, is_logged, has_ended)


@dataclass(frozen=True)
class View:
    """The state of a command at one moment; all times are from one monotonic clock.

    Attributes:
        spent_s: Seconds spent in earlier stages, by the first word of their names.
        max_steps: 0 before training.
        rates: Error rates in percent of each validation; the main metric is first.
    """

    began_s: float
    stage: Stage | None = None
    stage_began_s: float = 0.0
    spent_s: Mapping[str, float] = field(default_factory=dict)
    counted: Counted | None = None
    step: int = 0
    max_steps: int = 0
    eta_s: float | None = None
    losses: tuple[float, ...] = ()
    rates: tuple[Mapping[str, float], ...] = ()
    clips_per_s: float | None = None
    workers: int = 0
    quarantined: int = 0

    @property
    def is_training(self) -> bool:
        return self.stage is not None and self.stage.name == TRAIN and self.max_steps > 0

    def spent_until(self, now_s: float) -> Mapping[str, float]:
        """Returns `spent_s` including the current stage up to now."""
        if self.stage is None:
            return self.spent_s
        name = self.stage.name.partition(" ")[0]
        return {**self.spent_s, name: self.spent_s.get(name, 0.0) + self.stage_took_s(now_s)}

    def stage_took_s(self, now_s: float) -> float:
        return now_s - self.stage_began_s

    def after(self, event: Event, now_s: float) -> Self:
        """Returns the view after an event."""
        match event:
            case Stage():
                is_same = self.stage is not None and (self.stage.name, self.stage.doing) == (event.name, event.doing)
                return self if is_same else self._entered(event, now_s)
            case StageEnded() | Finished():
                return self._entered(None, now_s)
        return replace(self, **_changes(event, self))

    def _entered(self, stage: Stage | None, now_s: float) -> Self:
        return replace(self, stage=stage, stage_began_s=now_s, spent_s=self.spent_until(now_s), counted=None)


def _changes(event: Event, view: View) -> dict[str, Any]:
    """Returns the attributes that an event changes."""
    at = {name: getattr(event, name) for name in ("step", "max_steps", "eta_s") if hasattr(event, name)}
    match event:
        case Counted():
            return {"counted": None if event.has_ended else event}
        case DataFound():
            return {"quarantined": event.quarantined}
        case TrainingBegan():
            return {**at, "workers": event.workers}
        case Logged():
            return {**at, "losses": (*view.losses, event.loss), "clips_per_s": event.clips_per_s}
        case Validated():
            return {"rates": (*view.rates, event.rates)}
    return at if isinstance(event, Stepped) else {}
