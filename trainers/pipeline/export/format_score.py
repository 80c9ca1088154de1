"""What a converted model scores on the clips that its run was scored on, by the runtime of its format."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainers.distributed.console import ProgressCounter, show
from trainers.models.labels import NOT_NAMED, empty_labels
from trainers.pipeline.export.exporter import Runtime, Source
from trainers.pipeline.export.scored_run import ScoredRun, positions_of
from trainers.scoring.error_rate import Score, UtteranceScore, score_texts
from trainers.training.planning import cache_bytes


@dataclass(frozen=True)
class FormatScore:
    """The score of a format.

    Attributes:
        real_time_factor: Seconds that a second of audio takes, one clip after another.
    """

    score: Score
    utterances: Sequence[UtteranceScore]
    real_time_factor: float


def score_format(runtime: Runtime, source: Source, run: ScoredRun, what: str) -> FormatScore:
    """Recognizes each utterance that the run scored, and counts as the run did; lines of progress begin with `what`.

    Raises:
        DataError: an utterance is not in the prepared set, or is damaged there.
    """
    recognizer, limits = source.recognizer, source.recognizer.limits
    features = recognizer.new_features()
    edge_s = limits.context_s if limits.full_context else None
    least_samples = limits.least_samples if limits.frames is None else limits.frames.least_samples
    reader = run.prepared.reader(cache_bytes(run.config))
    named = [row.get("language") for row in run.rows]
    languages = [None if language == NOT_NAMED else language for language in named]
    labels = empty_labels(recognizer.codec, recognizer.processor, languages, run.config.model.language)
    counter = ProgressCounter(what, total=len(run.rows), unit="clips", show=show)
    texts: list[str] = []
    took_s = 0.0
    for position, label in zip(positions_of(run.prepared, run.rows), labels, strict=True):
        samples = reader.read(position)
        began_s = time.perf_counter()
        # Of one that is too short for an output the hypothesis is empty, as in scoring.
        text = ""
        if len(samples) >= least_samples:
            text = runtime.recognize(features.inputs([torch.from_numpy(samples)], edge_s), label)
        texts.append(text)
        took_s += time.perf_counter() - began_s
        counter.advance(1)
    references, ids = [row["reference"] for row in run.rows], [row["id"] for row in run.rows]
    durations_s = [float(row["duration_s"]) for row in run.rows]
    requested = int(run.totals["utterances"])
    score, utterances = score_texts(texts, references, run.normalizer, ids, durations_s, requested)
    return FormatScore(score, utterances, took_s / sum(durations_s))
