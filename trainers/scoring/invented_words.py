"""Counts the words that a recognizer writes for sounds without speech."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.sounds import Sound
from trainers.distributed.console import ProgressCounter
from trainers.distributed.session import Session
from trainers.metrics.known_metrics import CER, WER
from trainers.models.labels import empty_labels
from trainers.models.recognizer import Recognition, Recognizer
from trainers.scoring.batches import BatchRecognizer, batches_of
from trainers.scoring.normalizers import Normalizer, normalizer_named
from trainers.scoring.scorer import CutShort, CutShortError, ScoringOptions, never


@dataclass(frozen=True)
class _Piece:
    """A part of a sound that fits into the model's context."""

    sound: int
    samples: np.ndarray


def count_invented_words(
    sounds: Sequence[Sound],
    recognizer: Recognizer,
    session: Session,
    options: ScoringOptions,
    *,
    language: str | None,
    what: str,
    cut_short: CutShort = never,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns totals and, for each sound, its text, as evaluation/<name>.json and .jsonl have them.

    Sounds are cut into parts of the model's full context, without voice activity detection or thresholds, and
    recognized in the `language` of the config. Progress is shown as `what`. Every rank calls this.

    Raises CutShortError if `cut_short` returned True on some rank.
    """
    model = recognizer.model
    was_training = model.training
    model.eval()
    try:
        label = empty_labels(recognizer.codec, recognizer.processor, [None], language)[0]
        found = _recognize(sounds, label, recognizer, session, options, what, cut_short)
    finally:
        model.train(was_training)
    normalize = normalizer_named(options.normalizer)
    rows = [*_rows(sounds, [" ".join(filter(None, (each.text for each in own))) for own in found], normalize)]
    greedy = {}
    if options.decoding.search is not None:
        texts = [" ".join(filter(None, (each.greedy for each in own))) for own in found]
        greedy = {options.decoding.part.greedy: _totals([*_rows(sounds, texts, normalize)])}
    decoding = options.decoding.describe()
    return {**_totals(rows), **greedy, **normalize.to_json_dict(), "decoding": decoding}, rows


def _rows(sounds: Sequence[Sound], texts: Sequence[str], normalize: Normalizer) -> Iterator[dict[str, Any]]:
    for sound, text in zip(sounds, texts, strict=True):
        normalized = normalize(text)
        counts = {metric.units: len([*metric.cut(normalized)]) for metric in (WER, CER)}
        yield {"id": sound.id, "hypothesis": text, **counts, "duration_s": sound.duration_s}


def _totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    minutes = sum(row["duration_s"] for row in rows) / 60
    totals = {metric.units: sum(row[metric.units] for row in rows) for metric in (WER, CER)}
    return {
        "sounds": len(rows),
        "with_words": sum(bool(row[WER.units]) for row in rows),
        "minutes": minutes,
        **totals,
        "words_per_minute": totals[WER.units] / minutes,
        "characters_per_minute": totals[CER.units] / minutes,
    }


def _recognize(
    sounds: Sequence[Sound],
    label: list[int],
    recognizer: Recognizer,
    session: Session,
    options: ScoringOptions,
    what: str,
    cut_short: CutShort,
) -> list[list[Recognition]]:
    """Returns the results of the parts of each sound, on every rank."""
    context = round(recognizer.limits.context_s * SAMPLING_RATE_HZ)
    pieces = [
        _Piece(number, sound.samples[start : start + context])
        for number, sound in enumerate(sounds)
        for start in range(0, len(sound.samples), context)
    ]
    durations_s = np.array([len(piece.samples) / SAMPLING_RATE_HZ for piece in pieces])
    at_full = options.of_full_context if options.full_context_s is not None else options
    batches = batches_of(
        durations_s,
        np.arange(len(pieces)),
        at_full.edges_s,
        to_longest=at_full.to_longest,
        batch_size=at_full.batch_size,
    )
    found: list[tuple[int, Recognition]] = []
    recognize = BatchRecognizer(recognizer).recognize
    mine = batches[session.rank :: session.world_size]
    total = sum(len(positions) for positions, _ in mine)
    counter = ProgressCounter(what, total=total, unit="clips", show=session.show_from_main, every_s=10.0)
    gave_up = False
    for positions, edge_s in mine:
        session.record_progress()
        gave_up = cut_short()
        if gave_up:
            break
        clips = [pieces[position].samples for position in positions]
        recognized = recognize(clips, [label] * len(clips), edge_s, at_full.decoding)
        found += zip(positions.tolist(), recognized, strict=True)
        counter.advance(len(positions))
    parts = session.gather((found, gave_up), what)
    if any(part[1] for part in parts):
        raise CutShortError
    by_piece = dict(each for part, _ in parts for each in part)
    of_sounds: list[list[Recognition]] = [[] for _ in sounds]
    for number, piece in enumerate(pieces):
        of_sounds[piece.sound].append(by_piece[number])
    return of_sounds
