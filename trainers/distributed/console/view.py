"""What is known of a command that runs, of all events so far. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from trainers.distributed.console.events import (
    Counted,
    DataFound,
    Event,
    Finished,
    Logged,
    Stage,
    StageEnded,
    Stepped,
    TrainingBegan,
    Validated,
)

TRAIN = "train"


@dataclass(frozen=True)
class View:
    """A command at one moment; times are of one monotonic clock.

    Attributes:
        spent_s: Seconds that the stages before the present one took, by the first word of their names.
        counted: What the present stage counts.
        max_steps: 0 before training.
        rates: Error rates in percent of each validation, the one that matters first.
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
        """As `spent_s`, with what the present stage has taken so far."""
        if self.stage is None:
            return self.spent_s
        name = self.stage.name.partition(" ")[0]
        return {**self.spent_s, name: self.spent_s.get(name, 0.0) + self.stage_took_s(now_s)}

    def stage_took_s(self, now_s: float) -> float:
        return now_s - self.stage_began_s

    def after(self, event: Event, now_s: float) -> Self:
        """The view after an event."""
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
    """Which attributes change with an event."""
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
