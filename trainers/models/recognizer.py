"""What training and scoring ask of a model, whatever its family."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from trainers.config.parts.decode_part import Setting
from trainers.config.storage_location import StorageOptions
from trainers.data.batch_plan import FloatArray, IntArray
from trainers.data.features.model_input import Features
from trainers.distributed.session import Session
from trainers.models.label_codec import LabelCodec, Limits

IGNORED_LABEL = -100
# From the label ids of each utterance, -100 among them kept, and the number of samples of its clip: `labels`, -100
# where the model is to predict nothing, and what else it is given next to `Features.inputs`, such as a prompt's tokens.
LabelCollator = Callable[[Sequence[Sequence[int]], Sequence[int]], dict[str, torch.Tensor]]


class Searcher(Protocol):
    """What searches a model's outputs, with what it has loaded; only its family calls more of it.

    Attributes:
        warning: What it cannot find; None: nothing.
    """

    warning: str | None

    def describe(self) -> dict[str, Any]:
        """What decides its hypotheses apart from the setting, for the record of a score."""


@dataclass(frozen=True)
class Search:
    """A search of a model's outputs.

    Attributes:
        searcher: Searches, with what it has loaded.
        settings: The first makes the hypothesis, by each of the others there is one more.
        chosen_on: Key of the prepared set on which the first was chosen. None: it was given.
    """

    searcher: Any
    settings: tuple[Setting, ...]
    chosen_on: str | None = None


@dataclass(frozen=True)
class Decoding:
    """How hypotheses are generated.

    Attributes:
        part: The config's decode part, of the recognizer's family.
        nbest: Hypotheses that are given of each utterance, at most as many as the beams of `part`. None: only the best.
        autocast: Lower precision of the computation, or None for float32.
        as_written: Whether hypotheses are compared as they are written, so that no text may be suppressed.
        search: How outputs are searched. None: hypotheses are made without.
        word_times: Whether the time of each word is given, by a model that `Recognizer.gives_word_times`.
    """

    part: Any
    nbest: int | None = None
    autocast: torch.dtype | None = None
    as_written: bool = False
    search: Search | None = None
    word_times: bool = False

    def describe(self) -> dict[str, Any]:
        """What stands as `decoding` in the record of a score."""
        if self.search is not None:
            return {**self.search.searcher.describe(), **self.search.settings[0].to_json_dict()}
        described: dict[str, Any] = self.part.describe()
        return described

    def precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Within it, a model on this device computes in the precision of `autocast`."""
        return computing_in(self.autocast, device)


def computing_in(autocast: torch.dtype | None, device: torch.device) -> AbstractContextManager[Any]:
    """Within it, a model on this device computes in a lower precision; None: in that of its weights."""
    return torch.autocast(device.type, autocast) if autocast is not None else nullcontext()


@dataclass(frozen=True)
class Alternative:
    """One hypothesis of several.

    Attributes:
        text: The hypothesis.
        avg_logprob: See `Recognition`.
    """

    text: str
    avg_logprob: float


class Word(NamedTuple):
    """A word of a hypothesis, and when it is spoken. Seconds from the clip's beginning."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Recognition:
    """A model's result for one utterance.

    Attributes:
        text: The hypothesis.
        loss: Cross-entropy summed over the utterance's labels, in nats. None: see `Recognizer.scores_loss`.
        avg_logprob: Mean over the hypothesis's generated tokens, its end token among them unless it was cut off at the
            maximal length, of ln p(token | utterance, the tokens before it). p is the model's softmax over all tokens,
            before generation suppresses any. Prompt tokens (start, language, task) are given, not generated.
            Of a model that gives each frame an output, a mean over outputs, as its family says.
        nbest: Where it was asked for, several hypotheses, the best by its own score first.
        greedy: With the hypothesis of a search of outputs, the one without, for comparison.
        by_other_settings: The hypotheses by the other settings of `Search`.
        words: Where it was asked for, the words of the hypothesis in their order.
    """

    text: str
    loss: float | None
    avg_logprob: float
    nbest: tuple[Alternative, ...] | None = None
    greedy: str | None = None
    by_other_settings: tuple[str, ...] = ()
    words: tuple[Word, ...] | None = None


class Target(NamedTuple):
    """The target of a forward pass.

    Attributes:
        labels: int64 (B, L), -100 is ignored; a row of nothing else is of a filler, and costs nothing.
        lengths: See `features.LENGTHS`. None: the model's input is of one length.
        smoothing: Label smoothing, 0 for none.
    """

    labels: torch.Tensor
    lengths: torch.Tensor | None = None
    smoothing: float = 0.0


class BaseWeights(Protocol):
    """The weights that a run began with, where its checkpoints must name them."""

    @property
    def is_own(self) -> bool:
        """Whether only this run has them."""

    def write(self, folder: Path, file: str) -> None:
        """Writes into a checkpoint which weights they are."""


class TrainedAdapter(Protocol):
    """What is trained inside a network in place of its weights."""

    def save(self, folder: Path) -> None:
        """Writes it, and of the network what is not weights."""

    def load(self, folder: Path) -> None:
        """Takes the content of a checkpoint."""


class Regularizer(Protocol):
    """A further term of the loss, over a sample of each step's utterances, of the network's own forward pass.

    Attributes:
        name: What its mean, without the weight, is logged under.
        weight: What the term is multiplied by before it is added to the loss.
        fraction: Of each step's utterances that are in the sample, at least one.
    """

    name: str
    weight: float
    fraction: float

    def of(self, clips: Sequence[torch.Tensor], shares: torch.Tensor) -> AbstractContextManager[None]:
        """Within it, a forward pass gives the term as the `loss` of its output.

        Args:
            clips: Those of the pass that are in the sample, int16 samples of each (T_i,), as of `Features.inputs`.
            shares: What each counts of the step's term, float32 (B,); they add to 1 over all ranks and passes.
        """


def label_loss(
    logits: torch.Tensor, labels: torch.Tensor, count: torch.Tensor | int | None, smoothing: float = 0.0
) -> torch.Tensor:
    """Cross-entropy of logits (B, L, V), summed over labels (B, L) other than -100, and divided by `count`.

    That is the number of labels of the global batch, over all ranks and forward passes; None: of this one.
    """
    total = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total / (labels.ne(IGNORED_LABEL).sum() if count is None else count)


@dataclass(frozen=True)
class Recognizer(ABC):
    """A model with its processor: features, labels, loss and decoding.

    Attributes:
        model: A transformers model, not wrapped.
        processor: Its processor.
        codec: How it writes transcripts: its family.
        notes: What was changed of the weights' own settings and matters to the result, a line each.
        adapter: What is trained inside the model in place of its weights. None: they are themselves.
        regularizer: A further term of the loss. None: there is none.
        base: The weights that the run began with. None: nothing depends on them.
        scores_loss: Whether `recognize` gives the loss of the labels too, for which a model that generates runs once
            more. Where it does not, scores have no loss.
    """

    scores_loss: ClassVar[bool] = True

    model: Any
    processor: Any
    codec: LabelCodec
    notes: tuple[str, ...] = ()
    adapter: TrainedAdapter | None = None
    regularizer: Regularizer | None = None
    base: BaseWeights | None = None

    @property
    def limits(self) -> Limits:
        """What it can take in and give out."""
        return self.codec.limits(self.model.config, self.processor)

    @property
    def gives_word_times(self) -> bool:
        """Whether it knows when each word of a hypothesis is spoken."""
        return False

    def encode_labels(self, texts: Sequence[str]) -> list[list[int]]:
        """See `LabelCodec`."""
        return self.codec.encode_labels(self.processor, texts)

    @abstractmethod
    def new_features(self) -> Features:
        """Computes the model's inputs from samples."""

    def in_type_of_weights(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inputs of `Features.inputs` with their floating-point values in the type of the model's weights."""
        dtype = self.model.dtype
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}

    @property
    @abstractmethod
    def collate_labels(self) -> LabelCollator:
        """Makes inputs of labels; can be pickled, for it goes to the processes that read clips."""

    def cost(self, padded_s: float, label_tokens: IntArray) -> FloatArray:
        """What utterances cost of `training.max_batch_duration_s`, which bounds a batch's memory, shape (N,).

        By default the seconds that they are padded to. Where memory grows with the labels, too, it is the seconds that
        would take as much of it without any; a batch costs what its costliest utterance does, for each of its own.

        Args:
            padded_s: Seconds that they are padded to; the cost grows with it.
            label_tokens: Tokens of each one's labels, shape (N,).
        """
        return np.full(len(label_tokens), padded_s)

    def open_search(
        self, part: Any, storage_options: StorageOptions, session: Session
    ) -> AbstractContextManager[Searcher]:
        """Loads a search of the model's outputs, whose files are there within it. Every rank calls it.

        Args:
            part: The config's decode part, which asks for one by its settings.
            storage_options: Of the buckets that files are in.
            session: This rank.

        Raises:
            ConfigError: a file cannot be used.
            StorageError: a bucket cannot be read, or the Hub does not respond.
        """
        raise NotImplementedError(f"{type(self).__name__}: its family has no search of outputs")

    def new_regularizer(self, part: Any, autocast: torch.dtype | None) -> Regularizer | None:
        """What keeps the model near the weights that it has now, where its part of the config `is_regularized`.

        `autocast` is the lower precision of training, or None for float32.
        """
        return None

    def with_input_length(self, inputs: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        """Within it, the model takes inputs of exactly the length of these, see `Features.inputs`."""
        return nullcontext()

    def counted_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss of a global batch is divided by: the number of all but -100 in what this gives of labels."""
        return labels

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """The loss summed over utterances, divided by what is counted in the global batch; by default `label_loss`.

        Args:
            outputs: What the model gave.
            target: What it should have given.
            count: See `counted`, over all ranks and forward passes. None: of this batch.
        """
        return label_loss(outputs.logits, target.labels, count, target.smoothing)

    @abstractmethod
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        """Generates a hypothesis for each utterance, without gradients.

        Args:
            inputs: Of `Features.inputs`, on the model's device.
            labels: Label ids of each utterance.
            decoding: How.
        """
