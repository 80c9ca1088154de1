"""Tasks that the driver passes to workers. Loads no heavy library, since Ray Train's controller imports this module."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.models.sources.model_files import SourcePin


@dataclass(frozen=True)
class Length:
    """A length of a run as in the config, in optimizer steps or in passes over the data.

    `extend` is how the learning rate continues at the end of the previous length; None for the first length.
    """

    max_steps: int | None
    num_train_epochs: float | None
    extend: Literal["restart", "constant"] | None = None

    @property
    def amount(self) -> float:
        """Number of steps or passes."""
        return self.max_steps if self.max_steps is not None else float(self.num_train_epochs or 0)

    @property
    def text(self) -> str:
        """The length for messages, such as `max_steps 100`."""
        return f"max_steps {self.max_steps}" if self.max_steps is not None else f"num_train_epochs {self.amount:g}"

    def steps(self, steps_per_epoch: int) -> int:
        """Returns the number of the last optimizer step."""
        return self.max_steps if self.max_steps is not None else math.ceil(self.amount * steps_per_epoch)


@dataclass(frozen=True)
class TrainTask:
    """Everything that the driver passes to a training worker.

    Attributes:
        processor: Folder, in the run folder, of a new model's description; None to use a pretrained model's own.
        weights: The checkpoint with the initial weights of the run; None to use the model's own.
        managed_by_service: True if a service counts the attempts, see `staging.Staging.wait_for_earlier_groups`.
        has_base: True if the run begins with the weights of a complete recognizer, which can be scored.
        sources: The pinned sources of the model, by field; empty for new weights.
        new_speakers: Ids of validation clips whose speakers the training set lacks, if evaluate.guard compares them.
    """

    config: TrainConfig
    sets: Mapping[str, PreparedSet]
    attempt: int
    run_id: str
    processor: str | None
    weights: str | None
    lengths: Sequence[Length]
    managed_by_service: bool
    has_base: bool
    sources: Mapping[str, SourcePin] = field(default_factory=dict)
    new_speakers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ScoreTask:
    """Everything that the driver passes to a scoring worker.

    Attributes:
        model: Folder or URL of a model, or a Hub id.
        nbest: Number of hypotheses for each utterance; None for only the best.
        validation: Set on which the setting of a search is chosen; None if there is nothing to choose.
    """

    config: TrainConfig
    prepared: PreparedSet
    split: str
    model: str
    folder_url: str
    nbest: int | None = None
    validation: PreparedSet | None = None
