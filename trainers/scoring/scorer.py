"""Scores a recognizer on a prepared set: every utterance once, in its own bucket, wherever it is computed."""

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import SuppressTokensLogitsProcessor

from trainers.data.batch_plan import bucket_of
from trainers.data.features import LogMel
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.distributed.console import Progress
from trainers.distributed.out_of_memory import is_out_of_memory
from trainers.distributed.session import Session
from trainers.errors import ScoringError
from trainers.models.processor import encode_labels
from trainers.models.whisper import Recognizer, input_frames, label_loss, pad_labels
from trainers.scoring.error_rate import Score, UtteranceScore, check_ids
from trainers.scoring.metrics import ErrorRates
from trainers.scoring.normalizers import scoring_normalizer


@dataclass(frozen=True)
class ScoringOptions:
    """How hypotheses are made and compared.

    Attributes:
        batch_size: Utterances of one generate call. It never moves a score.
        max_length: Most tokens of a hypothesis.
        num_beams: Beams; 1 is greedy.
        normalize: Compare after Whisper's basic text normalization.
        edges_s: Bucket edges in seconds, see `batch_plan.bucket_edges`.
        autocast: Lower precision of the computation, or None for float32.
    """

    batch_size: int
    max_length: int
    num_beams: int
    normalize: bool
    edges_s: tuple[float, ...]
    autocast: torch.dtype | None = None


@dataclass(frozen=True)
class SplitScore:
    """A split's score and what it is made of.

    Attributes:
        score: Counts and rates.
        utterances: One record each, in the manifest's order.
        loss: Cross-entropy per label in nats.
    """

    score: Score
    utterances: list[UtteranceScore]
    loss: float


class CutShortError(Exception):
    """Scoring was ended before its time; every rank raises it, since no score is one of a part of the set."""


@dataclass(frozen=True)
class _Hypothesis:
    position: int
    text: str
    loss: float
    labels: int


class Scorer:
    """Scores one prepared set; every rank has one, and all call `score` together."""

    def __init__(self, prepared: PreparedSet, recognizer: Recognizer, session: Session, *, cache_bytes: int):
        """Takes what stays the same between scores.

        Args:
            prepared: The set.
            recognizer: Model (not wrapped) and processor.
            session: This rank's rank and world.
            cache_bytes: Bound of the node's copy of shards from s3://.
        """
        self._prepared = prepared
        self._recognizer = recognizer
        self._session = session
        self._reader = ClipReader(prepared, cache_bytes=cache_bytes)
        self._log_mel = LogMel(recognizer.processor.feature_extractor)
        self._index = prepared.index
        self._durations_s = self._index["duration_s"].to_numpy()
        texts = self._index["text"].to_pylist()
        self._labels = encode_labels(recognizer.processor.tokenizer, texts)

    def score(
        self, options: ScoringOptions, what: str = "", *, cut_short: Callable[[], bool] = lambda: False
    ) -> SplitScore:
        """Recognizes every utterance once over all ranks, gathers, sums, divides.

        Args:
            options: How.
            what: Begins lines of progress; none are printed without it.
            cut_short: Whether to give up; called on each rank, before each of its batches.

        Raises:
            CutShortError: a rank gave up.
            ScoringError: an utterance was scored twice or not at all; the references hold no word.
        """
        model = self._recognizer.model
        was_training = model.training
        model.eval()
        self._log_mel.to(model.device)
        batches = self._own_batches(options)
        total_clips = sum(len(positions) for positions, _ in batches)
        progress = Progress(what, total=total_clips, unit="clips", say=self._session.say, every_s=10.0)
        try:
            hypotheses: list[_Hypothesis] = []
            gave_up = False
            for positions, edge_s in batches:
                gave_up = cut_short()
                if gave_up:
                    break
                hypotheses += self._recognize_halving(positions, edge_s, options)
                if what:
                    progress.advance(len(positions))
        finally:
            model.train(was_training)
        parts = self._session.gather((hypotheses, gave_up))
        if any(part[1] for part in parts):
            raise CutShortError
        return self._sum([item for part, _ in parts for item in part], options)

    def _own_batches(self, options: ScoringOptions) -> list[tuple[np.ndarray, float]]:
        """This rank's batches: each of one bucket, the costliest first, dealt out in turn."""
        buckets = bucket_of(self._durations_s, options.edges_s)
        batches: list[tuple[np.ndarray, float]] = []
        for bucket in sorted(set(buckets.tolist()), reverse=True):
            members = np.flatnonzero(buckets == bucket)
            members = members[np.argsort(-self._durations_s[members], kind="stable")]
            for start in range(0, len(members), options.batch_size):
                batches.append((members[start : start + options.batch_size], options.edges_s[bucket]))
        return batches[self._session.rank :: self._session.world_size]

    def _recognize_halving(self, positions: np.ndarray, edge_s: float, options: ScoringOptions) -> list[_Hypothesis]:
        """Halves the batch where memory does not suffice; a single utterance that does not fit is an error."""
        try:
            return self._recognize(positions, edge_s, options)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if len(positions) == 1 or not is_out_of_memory(error):
                raise
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        half = len(positions) // 2
        return [
            *self._recognize_halving(positions[:half], edge_s, options),
            *self._recognize_halving(positions[half:], edge_s, options),
        ]

    @torch.no_grad()
    def _recognize(self, positions: np.ndarray, edge_s: float, options: ScoringOptions) -> list[_Hypothesis]:
        model, tokenizer = self._recognizer.model, self._recognizer.processor.tokenizer
        frames = self._log_mel.frames(edge_s)
        clips = [torch.from_numpy(self._reader.read(position)).to(model.device) for position in positions]
        features = torch.stack([self._log_mel(clip, frames) for clip in clips])
        precision = (
            torch.autocast(model.device.type, options.autocast) if options.autocast is not None else nullcontext()
        )
        with input_frames(model, frames), precision:
            # Once, for the loss and for the hypothesis: the encoder is most of the work.
            encoded = model.get_encoder()(features)
            losses = self._losses(encoded, positions)
            tokens = model.generate(
                encoder_outputs=encoded,
                max_new_tokens=_most_new_tokens(model, options.max_length),
                num_beams=options.num_beams,
                do_sample=False,
                logits_processor=[self._no_timestamps()],
            )
        hypotheses = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [
            _Hypothesis(int(position), hypothesis.strip(), loss, len(self._labels[position]))
            for position, hypothesis, loss in zip(positions, hypotheses, losses, strict=True)
        ]

    def _no_timestamps(self) -> SuppressTokensLogitsProcessor:
        """Forbids timestamps, which are not wanted: after one, generation would go back to the audio."""
        model = self._recognizer.model
        first = model.generation_config.no_timestamps_token_id + 1
        return SuppressTokensLogitsProcessor(list(range(first, model.config.vocab_size)), device=model.device)

    def _losses(self, encoded: Any, positions: np.ndarray) -> list[float]:
        """Summed cross-entropy of each utterance's labels, in nats."""
        model = self._recognizer.model
        labels, inputs = pad_labels(
            [self._labels[position] for position in positions],
            start_id=model.config.decoder_start_token_id,
            pad_id=model.config.pad_token_id,
        )
        labels, inputs = labels.to(model.device), inputs.to(model.device)
        logits = model(encoder_outputs=encoded, decoder_input_ids=inputs).logits
        return [float(label_loss(row[None], target[None], 1)) for row, target in zip(logits, labels, strict=True)]

    def _sum(self, hypotheses: Sequence[_Hypothesis], options: ScoringOptions) -> SplitScore:
        gathered = sorted(hypotheses, key=lambda item: item.position)
        ids, texts = self._index["id"].to_pylist(), self._index["text"].to_pylist()
        check_ids(ids, [ids[item.position] for item in gathered])
        # One of each, in the order of the index.
        result = ErrorRates().compute(
            predictions=[item.text for item in gathered],
            references=texts,
            normalize=scoring_normalizer(options.normalize),
            ids=ids,
            durations_s=self._durations_s.tolist(),
            utterances=self._prepared.summary.rows,
        )
        utterances = result.pop("per_utterance")
        score = Score(**result)
        if score.wer is None:
            raise ScoringError(
                f"{self._prepared.url}: no transcript has a word once it is normalized, so that no WER exists; "
                "transcribe them, or set data.do_normalize_eval: false"
            )
        # Added exactly, so that the loss does not move with the order of ranks either.
        loss = math.fsum(item.loss for item in gathered) / sum(item.labels for item in gathered)
        return SplitScore(score, utterances, loss)


def _most_new_tokens(model: Any, max_length: int) -> int:
    # Start, language, task and no-timestamps stand before the first new token.
    return max(1, min(max_length, int(model.config.max_target_positions) - 4))
