"""What training and scoring ask of a model, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trainers.config.parts.decode_part import DecodePart, Weights
from trainers.data.features import Features
from trainers.distributed.session import Session
from trainers.errors import ConfigError
from trainers.models.ctc.decoding.decode_files import DecodeFiles
from trainers.models.family import Family, Limits

if TYPE_CHECKING:
    # It loads peft.
    from trainers.models.adaptation.lora import Adapter

    # It needs an optional package.
    from trainers.models.ctc.decoding.beam_search import BeamSearch
    from trainers.models.whisper.full_context_matching import FullContextMatching

IGNORED_LABEL = -100
# From label ids of each utterance, -100 among them kept: `labels`, -100 behind each, and what else the model is given.
LabelCollator = Callable[[Sequence[Sequence[int]]], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Beam:
    """A beam search of CTC outputs.

    Attributes:
        search: Searches, with what it has loaded.
        weights: What is weighed how: the first makes the hypothesis, by the others there is one each beside it.
        chosen_on: Key of the prepared set on which the first was chosen. None: it was given.
    """

    search: BeamSearch
    weights: tuple[Weights, ...]
    chosen_on: str | None = None


@dataclass(frozen=True)
class Decoding:
    """How hypotheses are generated.

    Attributes:
        max_length: Most tokens of a hypothesis.
        num_beams: Beams of a decoder; 1 is greedy.
        nbest: Hypotheses that are given of each utterance, at most as many as beams. None: only the best.
        autocast: Lower precision of the computation, or None for float32.
        as_written: Whether hypotheses are compared as they are written, so that no text may be suppressed.
        beam: How CTC outputs are searched. None: their best path is taken.
    """

    max_length: int
    num_beams: int
    nbest: int | None = None
    autocast: torch.dtype | None = None
    as_written: bool = False
    beam: Beam | None = None

    def describe(self) -> dict[str, Any]:
        """What stands as `decoding` in the record of a score."""
        if self.beam is not None:
            weights = self.beam.weights[0]
            chosen = {"lm_weight": weights.lm, "word_score": weights.word, "rescoring_weight": weights.rescoring}
            return {**self.beam.search.describe(), **chosen}
        return {"method": "greedy"} if self.num_beams == 1 else {"method": "beam", "beam_size": self.num_beams}

    def precision(self, device: torch.device) -> AbstractContextManager[Any]:
        """Within it, a model on this device computes in the precision of `autocast`."""
        return computing_in(self.autocast, device)


def computing_in(autocast: torch.dtype | None, device: torch.device) -> AbstractContextManager[Any]:
    """Within it, a model on this device computes in a lower precision; None: in that of its weights."""
    return torch.autocast(device.type, autocast) if autocast is not None else nullcontext()


@dataclass(frozen=True)
class Alternative:
    """One hypothesis of a beam search.

    Attributes:
        text: The hypothesis.
        avg_logprob: See `Recognition`.
    """

    text: str
    avg_logprob: float


@dataclass(frozen=True)
class Recognition:
    """A model's result for one utterance.

    Attributes:
        text: The hypothesis.
        loss: Cross-entropy summed over the utterance's labels, in nats.
        avg_logprob: Mean over the hypothesis's generated tokens, its end token among them unless it was cut off at the
            maximal length, of ln p(token | utterance, the tokens before it). p is the model's softmax over all tokens,
            before generation suppresses any. Prompt tokens (start, language, task) are given, not generated.
            Of a CTC model, mean over the clip's outputs: of ln p(symbol) along the best path; of a beam search, of
            ln p(labels | utterance), summed over the alignments that the beam has kept, without language models.
        nbest: Where it was asked for, hypotheses of a beam search, the best by its own score first.
        best_path: Beside the hypothesis of a beam search of CTC outputs, that of their best path.
        others: Beside that hypothesis, those by the other weights of `Beam`.
    """

    text: str
    loss: float
    avg_logprob: float
    nbest: tuple[Alternative, ...] | None = None
    best_path: str | None = None
    others: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class Recognizer(ABC):
    """A model with its processor: features, labels, loss and decoding.

    Attributes:
        model: A transformers model, not wrapped.
        processor: Its processor.
        notes: What was changed of the weights' own settings and matters to the result, a line each.
        adapter: What is trained inside the model in place of its weights. None: they are themselves.
        matching: What keeps it near the original at the whole context. None: nothing does.
    """

    model: Any
    processor: Any
    notes: tuple[str, ...] = ()
    adapter: Adapter | None = None
    matching: FullContextMatching | None = None

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """What it can take in and give out."""

    @property
    @abstractmethod
    def family(self) -> Family:
        """The family of the model."""

    def encode_labels(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Family.encode_labels`."""
        return self.family.encode_labels(self.processor, texts)

    @abstractmethod
    def new_features(self) -> Features:
        """Computes the model's inputs from samples."""

    @property
    @abstractmethod
    def collate_labels(self) -> LabelCollator:
        """Pads labels; can be pickled, for it goes to the processes that read clips."""

    def open_search(self, part: DecodePart, files: DecodeFiles, session: Session) -> BeamSearch:
        """Loads a beam search of the model's outputs. Every rank calls it.

        Args:
            part: The config's decode part, which asks for one.
            files: Its files.
            session: This rank.

        Raises:
            ConfigError: the model has a decoder, or a file cannot be used.
            StorageError: the Hub does not respond.
        """
        raise ConfigError(
            f"decode.method is beam, which searches the outputs of CTC models, and this one is of the family "
            f"{self.family.name}: remove it, and set training.generation_num_beams"
        )

    def fitted(self, inputs: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        """Within it, the model takes inputs of exactly the length of these, see `Features.inputs`."""
        return nullcontext()

    def counted(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss of a global batch is divided by: the number of all but -100 in what this gives of labels."""
        return labels

    @abstractmethod
    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """The loss summed over utterances, divided by what is counted in the whole global batch.

        Args:
            outputs: What the model gave.
            target: What it should have given.
            count: See `counted`, over all ranks and forward passes. None: of this batch.
        """

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
