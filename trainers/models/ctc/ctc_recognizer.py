"""Runs a CTC model: its loss is over each clip's frames without padding; the best path or a beam search decodes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCTC, set_seed

from trainers.config.optional_packages import BEAM_SEARCH
from trainers.config.storage_location import StorageOptions
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.features import LENGTHS, ExtractorFeatures
from trainers.distributed.session import Session
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.ctc.ctc_scratch import regularization
from trainers.models.ctc.decoding.decode_files import delimiter_of, local_files
from trainers.models.label_codec import LabelCodec
from trainers.models.pretrained import network_options
from trainers.models.recognizer import (
    IGNORED_LABEL,
    Alternative,
    Decoding,
    LabelCollator,
    Recognition,
    Recognizer,
    Search,
    Searcher,
    Target,
    Word,
    padded,
)
from trainers.models.sources.loaded_weights import weights_from_pretrained


@dataclass(frozen=True)
class CtcRecognizer(Recognizer):
    """A model of AutoModelForCTC and its processor."""

    def __post_init__(self) -> None:
        with_sample_convolutions(self.model)

    @classmethod
    def load(
        cls,
        codec: LabelCodec,
        model: CtcPart,
        processor: Any,
        description: Path | None,
        seed: int,
        weights: Path | None,
    ) -> "CtcRecognizer":
        """Loads the model; an output layer for another vocabulary is initialized from the seed."""
        set_seed(seed)
        options = network_options(model)
        config = AutoConfig.from_pretrained(description) if description is not None else None
        if config is None:
            # Weights without a head get one for a tokenizer that the config names.
            new_head = model.tokenizer_name is not None or model.vocabulary == "own"
            options |= regularization(model)
            network = weights_from_pretrained(model, AutoModelForCTC, new_head=new_head, **options)
        elif weights is not None:
            network = AutoModelForCTC.from_pretrained(weights, config=config, **options)
        elif model.init == "scratch":
            network = AutoModelForCTC.from_config(config, **options)
        else:
            network = weights_from_pretrained(model, AutoModelForCTC, new_head=True, config=config, **options)
        frozen = model.freeze_feature_encoder
        if hasattr(network, "freeze_feature_encoder") and (model.init == "pretrained" if frozen is None else frozen):
            network.freeze_feature_encoder()
        return cls(network, processor, codec)

    def new_features(self) -> ExtractorFeatures:
        return ExtractorFeatures(self.processor.feature_extractor, masked=not self.limits.padding_affects_output)

    @property
    def collate_labels(self) -> LabelCollator:
        return pad_labels

    @property
    def gives_word_times(self) -> bool:
        return True

    def counted_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns one label per utterance if the loss weights utterances equally, else all labels."""
        return labels[:, :1] if self.model.config.ctc_loss_reduction == "mean" else labels

    def loss(self, outputs: Any, target: Target, count: torch.Tensor | int | None) -> torch.Tensor:
        """Returns the loss by `ctc_loss_reduction`, over the frames of each clip without its padding."""
        labels = target.labels
        logprobs = outputs.logits.float().log_softmax(dim=-1)
        losses = self._losses(logprobs, labels, target.lengths, zero_infinity=self.model.config.ctc_zero_infinity)
        sizes = labels.ne(IGNORED_LABEL).sum(dim=-1)
        if self.model.config.ctc_loss_reduction == "mean":
            losses = losses / sizes.clamp(min=1)
        # A filler row without labels would add the cost of all blanks.
        total = losses.masked_fill(sizes == 0, 0.0).sum()
        return total / (self.counted_labels(labels).ne(IGNORED_LABEL).sum() if count is None else count)

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        """Returns the best path of each clip, or the result of a search.

        `avg_logprob` is per output of the clip: the mean of ln p(symbol) along the best path, or for a beam search
        ln p(labels | utterance), summed over the alignments that the beam has kept, without language models.
        """
        device, audible = self.model.device, self._frames(inputs[LENGTHS]) > 0
        if not bool(audible.all()):
            return self._among(inputs, labels, audible, decoding)
        given = dict(inputs)
        lengths = given.pop(LENGTHS)
        with decoding.precision(device):
            logits = self.model(**given).logits
        targets = pad_labels(labels)["labels"].to(device)
        logprobs = logits.float().log_softmax(dim=-1)
        losses = self._losses(logprobs, targets, lengths, zero_infinity=True).tolist()
        own = [row[:size] for row, size in zip(logprobs, self._frames(lengths).tolist(), strict=True)]
        found = [self._best_path(row, loss) for row, loss in zip(own, losses, strict=True)]
        if (search := decoding.search) is not None:
            found = [_searched(row, item, search, decoding.nbest) for row, item in zip(own, found, strict=True)]
        return [self._with_words(*each) for each in zip(found, own, strict=True)] if decoding.word_times else found

    def _with_words(self, item: Recognition, logprobs: torch.Tensor) -> Recognition:
        """Adds word timestamps, by the most likely alignment to the clip's unpadded outputs, (T, V)."""
        frames = self.limits.frames
        assert frames is not None, "a CTC model has an output for each frame"
        words = item.text.split()
        # The tokens of a word are those that it adds to the text before it, including a space.
        lengths = [len(ids) for ids in self.encode_labels([" ".join(words[:end]) for end in range(len(words) + 1)])]
        (labels,) = self.encode_labels([" ".join(words)])
        spans = align(logprobs.cpu().numpy(), labels, self.model.config.pad_token_id)
        delimiter, stride_s = delimiter_of(self.processor.tokenizer), frames.stride / SAMPLING_RATE_HZ
        timed = []
        for word, (start, end) in zip(words, pairwise(lengths), strict=True):
            own = [spans[place] for place in range(start, end) if labels[place] != delimiter]
            if own:
                timed.append(Word(word, own[0][0] * stride_s, own[-1][1] * stride_s))
        return replace(item, words=tuple(timed))

    def _best_path(self, logprobs: torch.Tensor, loss: float) -> Recognition:
        best, path = logprobs.max(dim=-1)
        return Recognition(self.processor.tokenizer.decode(path.tolist()).strip(), loss, float(best.mean()))

    def _among(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], audible: torch.Tensor, how: Decoding
    ) -> list[Recognition]:
        """Recognizes a batch in which clips too short for an output get an empty hypothesis and a loss of 0."""
        rows = torch.nonzero(audible).flatten().tolist()
        others = ("",) * (len(how.search.settings) - 1) if how.search is not None else ()
        best_path = None if how.search is None else ""
        words = () if how.word_times else None
        empty = Recognition("", 0.0, 0.0, greedy=best_path, by_other_settings=others, words=words)
        found = [empty] * len(labels)
        if rows:
            part = {name: value[audible] for name, value in inputs.items()}
            for row, item in zip(rows, self.recognize(part, [labels[row] for row in rows], how), strict=True):
                found[row] = item
        return found

    def open_search(self, part: CtcDecodePart, storage_options: StorageOptions, session: Session) -> Searcher:
        try:
            # Imported here because it requires an optional package.
            from trainers.models.ctc.decoding.beam_search import BeamSearch, CausalScorer  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(f"{BEAM_SEARCH.problem}: {error}") from error
        files, rescorer = local_files(part, storage_options, session), None
        if part.rescoring_model is not None:
            rescorer = CausalScorer.open(part.rescoring_model, session, self.model.device)
        return BeamSearch(self.processor.tokenizer, part, files, self.model.config.vocab_size, rescorer)

    def _frames(self, lengths: torch.Tensor | None) -> torch.Tensor:
        frames: torch.Tensor = self.model._get_feat_extract_output_lengths(lengths).to(torch.int64)
        return frames

    def _losses(
        self, logprobs: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor | None, *, zero_infinity: bool
    ) -> torch.Tensor:
        """Returns the negative log-likelihood of each utterance's labels (B, L) given outputs (B, T, V), nats, (B,)."""
        mask = labels.ne(IGNORED_LABEL)
        # cuDNN's loss is not deterministic, and limits lengths.
        with torch.backends.cudnn.flags(enabled=False):
            return torch.nn.functional.ctc_loss(
                logprobs.transpose(0, 1),
                labels.masked_select(mask),
                self._frames(lengths),
                mask.sum(dim=-1),
                blank=self.model.config.pad_token_id,
                reduction="none",
                zero_infinity=zero_infinity,
            )


def _searched(logprobs: torch.Tensor, best_path: Recognition, search: Search, nbest: int | None) -> Recognition:
    """Returns the best result of a beam search of unpadded outputs, (T, V), with the best path and its loss."""
    ranked = search.searcher.search(logprobs.cpu().numpy(), search.settings)
    found = [Alternative(each.text, each.acoustic / len(logprobs)) for each in ranked[0]]
    return Recognition(
        found[0].text,
        best_path.loss,
        found[0].avg_logprob,
        tuple(found[:nbest]) if nbest is not None else None,
        greedy=best_path.text,
        by_other_settings=tuple(each[0].text for each in ranked[1:]),
    )


def pad_labels(labels: Sequence[Sequence[int]], samples: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """Returns int64 labels (B, L), L at least 1, padded with -100; a `LabelCollator`."""
    # The additional row of length 1 makes L at least 1.
    return {"labels": padded([*labels, [IGNORED_LABEL]])[:-1]}


def align(logprobs: npt.NDArray[np.float32], labels: Sequence[int], blank: int) -> list[tuple[int, int]]:
    """Returns the first output of each label and the end of its outputs, by Viterbi's algorithm over labels and blanks.

    For the labels of the best path, the result is the best path itself.

    Args:
        logprobs: Log-softmax of one utterance's outputs, (T, V).
        labels: The L labels to align. If T is too short, outputs are divided evenly among the labels.
        blank: The blank label.
    """
    outputs, count = len(logprobs), len(labels)
    # The states of Graves et al. (2006), section 4.1: blank, label, blank, …, label, blank.
    states = np.full(2 * count + 1, blank)
    states[1::2] = labels
    # A blank between two labels may be left out, unless they are equal.
    skips = np.zeros(len(states), dtype=bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    score = np.full(len(states), -np.inf)
    score[:2] = logprobs[0, states[:2]]
    steps = np.zeros((outputs, len(states)), dtype=np.int8)
    for output in range(1, outputs):
        came = np.full((3, len(states)), -np.inf)
        came[0] = score
        came[1, 1:] = score[:-1]
        came[2, 2:] = np.where(skips[2:], score[:-2], -np.inf)
        steps[output] = came.argmax(axis=0)
        score = came.max(axis=0) + logprobs[output, states]
    state = len(states) - 1 - int(count > 0 and score[-2] >= score[-1])
    if not np.isfinite(score[state]):
        edges = np.linspace(0, outputs, count + 1).astype(int).tolist()
        return [*pairwise(edges)]
    path = np.empty(outputs, dtype=np.int64)
    for output in range(outputs - 1, -1, -1):
        path[output] = state
        state -= int(steps[output, state])
    found = [np.flatnonzero(path == 2 * place + 1) for place in range(count)]
    return [(int(own[0]), int(own[-1]) + 1) for own in found]


class SampleConvolution(torch.nn.Conv1d):
    """A Conv1d without padding, groups and dilation that is faster in float32 on a CPU, and torch's own elsewhere.

    oneDNN requires channels first, and the layer norms between two convolutions channels last, so that a third of a
    training step of wav2vec2 is spent on changing layouts. Here channels are last: a convolution is the sum of one
    matrix product for each `stride` of its taps, whose left side is a view of the input; equal up to rounding.
    """

    @classmethod
    def of(cls, convolution: torch.nn.Conv1d) -> "SampleConvolution":
        """Returns an equivalent convolution that shares the parameters."""
        sizes: Any = {
            name: getattr(convolution, name) for name in ("in_channels", "out_channels", "kernel_size", "stride")
        }
        made = cls(**sizes, bias=convolution.bias is not None, device="meta")
        made.weight, made.bias = convolution.weight, convolution.bias
        return made

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns (B, out channels, frames), a view with channels last, for inputs (B, channels, T)."""
        is_plain = inputs.device.type != "cpu" or inputs.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
        if is_plain:
            return super().forward(inputs)
        given = inputs.transpose(1, 2).contiguous()
        clips, length, channels = given.shape
        (width,), (stride,) = self.kernel_size, self.stride
        shape = (clips, (length - width) // stride + 1, self.out_channels)
        frames = self.bias.expand(shape) if self.bias is not None else given.new_zeros(shape)
        weight = self.weight.permute(2, 1, 0).reshape(width * channels, -1)
        for first in range(0, width, stride):
            taps = min(stride, width - first) * channels
            # The inputs of these taps at each frame, whose rows do not overlap.
            seen = given.as_strided((*shape[:2], taps), (length * channels, stride * channels, 1), first * channels)
            own = weight[first * channels : first * channels + taps]
            frames = frames.baddbmm(seen, own.expand(clips, -1, -1))
        return frames.transpose(1, 2)


def with_sample_convolutions(network: Any) -> None:
    """Replaces those convolutions over samples of a network that are followed by a layer norm."""
    for layer in getattr(getattr(network.base_model, "feature_extractor", None), "conv_layers", ()):
        is_plain = not isinstance(layer.conv, SampleConvolution)
        if is_plain and isinstance(getattr(layer, "layer_norm", None), torch.nn.LayerNorm):
            layer.conv = SampleConvolution.of(layer.conv)
