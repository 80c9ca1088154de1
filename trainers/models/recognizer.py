"""Defines the interface of models for training and scoring, common to all families."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from trainers.config.parts.decode_part import Setting
from trainers.config.storage_location import StorageOptions
from trainers.data.batch_plan import FloatArray, IntArray
from trainers.data.features import Features
from trainers.distributed.session import Session
from trainers.models.label_codec import LabelCodec, Limits

IGNORED_LABEL = -100
# A label id up to this one is a `given_token`.
_FIRST_GIVEN = -1000
# Takes each utterance's label ids, which may include -100, and its number of samples. Returns `labels`, with -100 where
# the model must not predict, and inputs other than `Features.inputs`, such as the tokens of a prompt.
LabelCollator = Callable[[Sequence[Sequence[int]], Sequence[int]], dict[str, torch.Tensor]]


class Searcher(Protocol):
    """Searches a model's outputs, with the files that it has loaded; only its family calls other methods."""

    # A message about what the search cannot find; None if there is nothing.
    warning: str | None

    def describe(self) -> dict[str, Any]:
        """Returns what determines the hypotheses apart from the setting, for the record of a score."""


@dataclass(frozen=True)
class Search:
    """A search of a model's outputs; the first setting makes the hypothesis, and each other one an additional one.

    `chosen_on` is the key of the prepared set on which the first setting was chosen; None if it was given.
    """

    searcher: Any
    settings: tuple[Setting, ...]
    chosen_on: str | None = None


@dataclass(frozen=True)
class Decoding:
    """Settings for generating hypotheses, from the config's decode part.

    Attributes:
        nbest: Number of hypotheses for each utterance, at most the beams of `part`; None for only the best.
        autocast: Lower precision of the computation, or None for float32.
        as_written: True if hypotheses are compared as written, so that no text may be suppressed.
        search: The search of outputs; None if hypotheses are made without a search.
        word_times: True to return word timestamps, with a model that `Recognizer.gives_word_times`.
    """

    part: Any
    nbest: int | None = None
    autocast: torch.dtype | None = None
    as_written: bool = False
    search: Search | None = None
    word_times: bool = False

    def describe(self) -> dict[str, Any]:
        """Returns the value of `decoding` in the record of a score."""
        if self.search is not None:
            return {**self.search.searcher.describe(), **self.search.settings[0].to_json_dict()}
        described: dict[str, Any] = self.part.describe()
        return described

    def precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Returns a context in which a model on this device computes in the precision of `autocast`."""
        return computing_in(self.autocast, device)


def computing_in(autocast: torch.dtype | None, device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which a model on this device computes in a lower precision; if None, in its weights'."""
    return torch.autocast(device.type, autocast) if autocast is not None else nullcontext()


@dataclass(frozen=True)
class Alternative:
    """One of several hypotheses, with its `avg_logprob` as in `Recognition`."""

    text: str
    avg_logprob: float


class Word(NamedTuple):
    """A word of a hypothesis, with its timestamps in seconds from the clip's beginning."""

    text: str
    start_s: float
    end_s: float


class Segment(NamedTuple):
    """A part of a clip, with its timestamps in seconds from the clip's beginning."""

    text: str
    start_s: float
    end_s: float


class Timestamps(NamedTuple):
    """The label ids of times: `first` is that of 0 s, and each further id is `step_s` later. Text has smaller ids."""

    first: int
    step_s: float

    def id_of(self, time_s: float, longest_s: float) -> int:
        """Returns the id nearest to a time that is at most `longest_s`."""
        # The quotient of 0.06 and 0.02 is below 3.
        most = math.floor(longest_s / self.step_s + 1e-6)
        return self.first + min(round(time_s / self.step_s), most)

    def rescaled(self, label: Sequence[int], factor: float, longest_s: float) -> list[int]:
        """Returns the label of a clip that is `factor` times as long, now `longest_s`."""
        return [
            self.id_of((each - self.first) * self.step_s * factor, longest_s) if each >= self.first else each
            for each in label
        ]


@dataclass(frozen=True)
class Recognition:
    """A model's result for one utterance.

    Attributes:
        loss: Cross-entropy summed over the utterance's labels, in nats; None unless `Recognizer.scores_loss`.
        avg_logprob: Mean over the hypothesis's generated tokens, including its end token unless truncated at the
            maximum length, of ln p(token | utterance, the tokens before it). p is the model's softmax over all tokens,
            before generation suppresses any. Prompt tokens (start, language, task) are given, not generated.
            For a model with an output for each frame, a mean over outputs, as defined by its family.
        nbest: If requested, several hypotheses, ordered by the model's own score, the best first.
        greedy: For a search of outputs, the hypothesis without the search, for comparison.
        by_other_settings: The hypotheses with the other settings of `Search`.
        words: If requested, the words of the hypothesis, in order.
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
        labels: int64 (B, L), -100 is ignored; a row of -100 only is a filler, whose loss is 0.
        lengths: See `features.LENGTHS`; None if the model's inputs have none.
    """

    labels: torch.Tensor
    lengths: torch.Tensor | None = None
    smoothing: float = 0.0


class BaseWeights(Protocol):
    """The weights at the start of a run, if its checkpoints must name them."""

    @property
    def is_own(self) -> bool:
        """True if only this run has the weights."""

    def write(self, folder: Path, file: str) -> None:
        """Writes the reference to the weights into a checkpoint."""


class TrainedAdapter(Protocol):
    """An adapter that is trained inside a network in place of its weights."""

    def save(self, folder: Path) -> None:
        """Writes the adapter, and the network's files except weights."""

    def load(self, folder: Path) -> None:
        """Loads the adapter of a checkpoint."""


class Regularizer(Protocol):
    """An additional term of the loss, over a sample of each step's utterances, computed in a forward pass.

    Attributes:
        name: Name under which its mean is logged, without the weight.
        weight: Factor of the term in the loss.
        fraction: Fraction of each step's utterances in the sample, at least one utterance.
    """

    name: str
    weight: float
    fraction: float

    def of(self, clips: Sequence[torch.Tensor], shares: torch.Tensor) -> AbstractContextManager[None]:
        """Returns a context in which the network's forward pass has the term as the `loss` of its output.

        Args:
            clips: The clips of the pass that are in the sample, int16 samples of each (T_i,), as for `Features.inputs`.
            shares: Weight of each clip in the step's term, float32 (B,); the sum over all ranks and passes is 1.
        """


def label_loss(
    logits: torch.Tensor, labels: torch.Tensor, count: torch.Tensor | int | None, smoothing: float = 0.0
) -> torch.Tensor:
    """Returns the cross-entropy of logits (B, L, V), summed over labels (B, L) other than -100, divided by `count`.

    `count` is the number of labels in the global batch, over all ranks and forward passes; if None, in this batch.
    """
    total = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return total / (labels.ne(IGNORED_LABEL).sum() if count is None else count)


def padded(labels: Sequence[Sequence[int]]) -> torch.Tensor:
    """Returns the labels of all utterances, int64 (B, L), shorter ones padded with -100."""
    rows = [torch.tensor(row, dtype=torch.int64) for row in labels]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED_LABEL)


def given_token(token: int) -> int:
    """Returns the label id of a token that the model is given and does not predict, such as one of a previous text.

    Given tokens precede all others of a label; the first one takes the place of the decoder's start token.
    """
    return _FIRST_GIVEN - token


def pad_labels(
    labels: Sequence[Sequence[int]], samples: Sequence[int] = (), *, start_id: int, pad_id: int
) -> dict[str, torch.Tensor]:
    """Pads labels by length (not by token id, since Whisper pads with its end token); a `LabelCollator`.

    Returns:
        int64 labels (B, L), padded with -100, and int64 decoder_input_ids (B, L): labels shifted right by one. Given
        tokens are inputs only.
    """
    has_start = [bool(row) and row[0] <= _FIRST_GIVEN for row in labels]
    with_start = padded([row if own else [start_id, *row] for row, own in zip(labels, has_start, strict=True)])
    width = max(map(len, labels), default=0)
    with_start = torch.nn.functional.pad(with_start, (0, width + 1 - with_start.shape[1]), value=IGNORED_LABEL)
    inputs, targets = with_start[:, :-1], with_start[:, 1:]
    inputs = torch.where(inputs <= _FIRST_GIVEN, _FIRST_GIVEN - inputs, inputs)
    return {
        "labels": targets.masked_fill(targets <= _FIRST_GIVEN, IGNORED_LABEL),
        "decoder_input_ids": inputs.masked_fill(inputs == IGNORED_LABEL, pad_id),
    }


def row_losses(network: Any, given: Mapping[str, Any], collated: Mapping[str, Any], first: int = 0) -> list[float]:
    """Returns the cross-entropy of each row of collated labels from its token `first` on, nats."""
    inputs = {name: value.to(network.device) for name, value in collated.items()}
    targets = inputs.pop("labels")
    logits = network(**given, **inputs).logits
    rows = zip(logits[:, first:], targets[:, first:], strict=True)
    return [float(label_loss(row[None], target[None], 1)) for row, target in rows]


def without_end(tokens: Sequence[int], padding: Collection[int]) -> list[int]:
    """Returns a hypothesis's tokens without the end token and everything after it."""
    length = len(tokens)
    while length and tokens[length - 1] in padding:
        length -= 1
    return list(tokens[:length])


@dataclass(frozen=True)
class Recognizer(ABC):
    """A model with its processor: features, labels, loss and decoding.

    Attributes:
        model: A transformers model, not wrapped.
        codec: The model's family, which encodes transcripts.
        notes: Changes to the weights' own settings that affect the result, one line each.
        adapter: The adapter that is trained in place of the model's weights; None if the weights are trained.
        regularizer: An additional term of the loss; None if there is none.
        base: The weights at the start of the run; None unless checkpoints must name them.
        scores_loss: True if `recognize` also returns the loss of the labels, for which a generative model runs once
            more. If False, scores have no loss.
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
        """The limits of the model's input and output."""
        return self.codec.limits(self.model.config, self.processor)

    @property
    def gives_word_times(self) -> bool:
        """True if the model can give word timestamps."""
        return False

    @property
    def timestamps(self) -> Timestamps | None:
        """The label ids of times; None if the model's family writes no timestamps."""
        return None

    def segments(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], autocast: torch.dtype | None
    ) -> list[list[Segment] | None]:
        """Generates a hypothesis in timed segments for each utterance, without gradients; None if it has no end.

        Only models of a family that `has_timestamps` have this method, and `timed_label`. `inputs` and `labels` are as
        for `recognize`; `autocast` is as in `Decoding`.
        """
        raise NotImplementedError(f"{type(self).__name__}: its family writes no timestamps")

    def timed_label(self, label: Sequence[int], segments: Sequence[Segment], duration_s: float) -> list[int]:
        """Returns the label ids of the segments of a clip with their timestamps, in the language of its label."""
        raise NotImplementedError(f"{type(self).__name__}: its family writes no timestamps")

    def label_after(self, label: Sequence[int], previous: str) -> list[int]:
        """Returns a label before which the model is given the text before its clip, as much as it has room for."""
        raise NotImplementedError(f"{type(self).__name__}: its family takes no previous text")

    def encode_labels(self, texts: Sequence[str]) -> list[list[int]]:
        """See `LabelCodec`."""
        return self.codec.encode_labels(self.processor, texts)

    @abstractmethod
    def new_features(self) -> Features:
        """Returns a new module that computes the model's inputs from samples."""

    def in_type_of_weights(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns inputs of `Features.inputs` with floating-point values in the type of the model's weights."""
        dtype = self.model.dtype
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}

    @property
    @abstractmethod
    def collate_labels(self) -> LabelCollator:
        """Collates labels into inputs; must be picklable, since it is sent to the processes that read clips."""

    def cost(self, padded_s: float, label_tokens: IntArray) -> FloatArray:
        """Returns costs in units of `training.max_batch_duration_s`, which limits a batch's memory, shape (N,).

        The cost is by default the padded seconds. If memory also grows with the labels, it is the seconds that would
        require as much memory without labels. Each utterance in a batch costs as much as the costliest.

        Args:
            padded_s: Seconds to which the utterances are padded; the cost grows with it.
            label_tokens: Number of label tokens of each utterance, shape (N,).
        """
        return np.full(len(label_tokens), padded_s)

    def open_search(self, part: Any, storage_options: StorageOptions, session: Session) -> Searcher:
        """Returns the loaded search of the model's outputs that a decode part requires. Every rank must call it.

        Raises ConfigError if a file cannot be used, and StorageError if a bucket cannot be read, or the Hub does not
        respond.
        """
        raise NotImplementedError(f"{type(self).__name__}: its family has no search of outputs")

    def new_regularizer(self, part: Any, autocast: torch.dtype | None) -> Regularizer | None:
        """Returns a term that keeps the model near its present weights; None unless its config `is_regularized`.

        `autocast` is the lower precision of training; None for float32.
        """
        return None

    def with_input_length(self, inputs: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        """Returns a context in which the model takes inputs of exactly this length, see `Features.inputs`."""
        return nullcontext()

    def counted_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns labels whose number, except -100, is the divisor of a global batch's loss."""
        return labels

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """Returns the loss summed over utterances, divided by the global batch's count; by default `label_loss`.

        `count` is the number of `counted_labels`, over all ranks and forward passes; if None, in this batch.
        """
        return label_loss(outputs.logits, target.labels, count, target.smoothing)

    @abstractmethod
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        """Generates a hypothesis for each utterance, without gradients.

        `inputs` are those of `Features.inputs`, on the model's device; `labels` the label ids of each utterance.
        """
