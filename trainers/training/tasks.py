"""What the driver passes to workers. Light: Ray Train's controller, which only hands it on, loads this file, too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.models.sources.model_files import SourcePin


@dataclass(frozen=True)
class Length:
    """A length of a run, as the config gives it: in optimizer steps or in passes over the data.

    Attributes:
        max_steps: Optimizer steps. None: by `num_train_epochs`.
        num_train_epochs: Passes over the data. None: by `max_steps`.
        extend: How the learning rate goes on where the length before it ends. None: it is the first.
    """

    max_steps: int | None
    num_train_epochs: float | None
    extend: Literal["restart", "constant"] | None = None

    @property
    def amount(self) -> float:
        """Steps or passes."""
        return self.max_steps if self.max_steps is not None else float(self.num_train_epochs or 0)

    @property
    def text(self) -> str:
        """`max_steps 100`, for messages."""
        return f"max_steps {self.max_steps}" if self.max_steps is not None else f"num_train_epochs {self.amount:g}"

    def steps(self, steps_per_epoch: int) -> int:
        """The last optimizer step."""
        return self.max_steps if self.max_steps is not None else math.ceil(self.amount * steps_per_epoch)


@dataclass(frozen=True)
class TrainTask:
    """Everything that the driver passes to a training worker.

    Attributes:
        run_id: Unique name of the run.
        processor: Folder of a new model's description in the run folder. None: a pretrained model's own.
        weights: The checkpoint whose weights a run begins with. None: the model's own.
        lengths: How long the run is, see `schedule`.
        managed_by_service: Whether a service counts the attempts, see `staging.Staging.wait_for_earlier_groups`.
        sources: What the sources of the model are, by their fields; none of new weights.
    """

    config: TrainConfig
    sets: Mapping[str, PreparedSet]
    attempt: int
    run_id: str
    processor: str | None
    weights: str | None
    lengths: Sequence[Length]
    managed_by_service: bool
    sources: Mapping[str, SourcePin] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreTask:
    """Everything that the driver passes to a scoring worker.

    Attributes:
        model: Folder or URL of a model, or a Hub id.
        nbest: Hypotheses that are given of each utterance. None: only the best.
        validation: What the setting of a search is chosen on. None: there is nothing to choose.
    """

    config: TrainConfig
    prepared: PreparedSet
    split: str
    model: str
    folder_url: str
    nbest: int | None = None
    validation: PreparedSet | None = None
