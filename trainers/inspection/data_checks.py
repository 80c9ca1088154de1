"""Checks manifests and recordings for what would stop training, silently leave clips out, or falsify a score."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pyarrow as pa

from trainers.config.parts.part import AUGMENT_FIELDS
from trainers.config.storage_location import is_url
from trainers.config.wording import counted
from trainers.data.augmentation import read_row
from trainers.data.selection import refuse_long_clips
from trainers.data.sources.manifest_source import locate_mixed
from trainers.errors import AudioError, DataError, StorageError
from trainers.findings import Finding, check, found_in, named, ok, problem, skipped, unread, warning
from trainers.inspection.recordings import Recordings
from trainers.inspection.subject import OPENING, SPLITS, Split, Subject
from trainers.scoring.normalizers import DEFAULT, hidden_marks, normalizer_named

# Any two sets share a few everyday sentences; above this fraction, the model may score well by memorizing sentences.
MAX_SHARED_FRACTION = 0.01
# Number of recordings of an augmentation manifest that are decoded, chosen at random.
MAX_DECODED = 32


@check(OPENING)
def check_manifests(subject: Subject) -> Iterator[Finding]:
    """Opens every split, which checks its file, columns, encoding and unique ids."""
    yield from subject.split_findings


@check(SPLITS)
def check_recordings(subject: Subject) -> Iterator[Finding]:
    """Checks that the recordings exist."""
    for split in subject.splits:
        recordings = subject.recordings(split)
        checked = _of(recordings.checked, len(split.table), "recordings", "looked up")
        if recordings.storage_error is not None:
            yield unread(f"{split.name}: {recordings.storage_error}")
        elif recordings.unreadable:
            yield _unreadable_recordings(subject, split, recordings, checked)
        else:
            yield ok(f"{split.name}: {checked} exist")


def _unreadable_recordings(subject: Subject, split: Split, recordings: Recordings, checked: str) -> Finding:
    most, unreadable = subject.config.data.max_bad_fraction, recordings.unreadable
    reasons = ", ".join(f"{count} × {reason}" for reason, count in Counter(unreadable.values()).most_common(3))
    text = f"{split.name}: {len(unreadable)} of {checked} cannot be read: {reasons} ({named(list(unreadable))})"
    if len(unreadable) == recordings.checked:
        text = f"{text}; check the paths in data.{split.name}: {split.source.origin}"
        # A bucket has the same content for every machine.
        in_bucket = is_url(split.table["audio"][0].as_py())
        return problem(text) if in_bucket else unread(text)
    if len(unreadable) > most * recordings.checked:
        return problem(f"{text}; fix or remove them, or raise data.max_bad_fraction {most:g}")
    return warning(f"{text}; they will be left out, and counted")


@check(SPLITS)
def check_transcripts(subject: Subject) -> Iterator[Finding]:
    """Counts empty transcripts."""
    for split in subject.splits:
        empty = [name for name, text in zip(split.ids, split.texts, strict=True) if not text]
        count = f"{split.name}: {len(empty)} of {len(split.texts)} transcripts are empty"
        if len(empty) == len(split.texts):
            yield problem(f"{count}; check data.text_column_name {subject.config.data.text_column_name!r}")
        elif empty and split.name == "train" and subject.config.data.empty_text == "train":
            yield ok(f"{count} ({named(empty)}), and teach the model to write nothing (data.empty_text)")
        elif empty:
            scored = "each recognized word counts as an insertion"
            effect = "they will be left out of training" if split.name == "train" else scored
            yield warning(f"{count} ({named(empty)}): {effect}; transcribe or remove them")
        else:
            yield ok(f"{split.name}: none of {len(split.texts)} transcripts is empty")


@check(SPLITS)
def check_normalizer(subject: Subject) -> Iterator[Finding]:
    """Checks that the normalizer keeps the marks with which the scored transcripts are written."""
    normalizer = normalizer_named(subject.config.data.normalizer or DEFAULT)
    for split in subject.splits:
        if split.name != "train":
            marks = hidden_marks(normalizer, split.texts, subject.config.model.language)
            if marks is not None:
                yield warning(f"{split.name}: {marks} (data.normalizer: basic)")
            else:
                yield ok(f"{split.name}: {normalizer.name} fits how words are written")


@check(SPLITS)
def check_durations(subject: Subject) -> Iterator[Finding]:
    """Compares durations with the bounds of training or, for scored splits, with the model's longest input."""
    for split in subject.splits:
        recordings = subject.recordings(split)
        if not recordings.known.any():
            yield skipped(f"{split.name}: neither the manifest nor a header has a duration")
        elif split.name == "train":
            yield _train_durations(subject, split, recordings)
        else:
            yield _scored_durations(subject, split, recordings)


@check(SPLITS)
def check_leakage(subject: Subject) -> Iterator[Finding]:
    """Searches for recordings that two splits share, and for evaluation transcripts that are also in training."""
    yield from _shared_recordings(subject)
    train = subject.split("train")
    if train is None:
        yield skipped("data.train could not be opened, so nothing can be compared with it")
        return
    learned = {_plain(text) for text in train.texts} - {""}
    for split in subject.splits:
        if split.name == "train":
            continue
        texts = [(name, plain) for name, text in zip(split.ids, split.texts, strict=True) if (plain := _plain(text))]
        known = [name for name, text in texts if text in learned]
        share = len(known) / max(1, len(texts))
        count = f"{split.name}: {len(known)} of {len(texts)} transcripts ({share:.1%}) are also trained on"
        if share > MAX_SHARED_FRACTION:
            yield warning(
                f"{count} ({named(known)}): the score will be better than on new sentences; "
                "split by sentence, unless the task is a closed set of phrases"
            )
        else:
            yield ok(count)


@check(OPENING)
def check_augmentation(subject: Subject) -> Iterator[Finding]:
    """Opens each manifest of recordings to mix in, and reads some of its recordings as training would."""
    locations = [(f"{part}.{name}", getattr(subject.config.augment, name)) for part, name in AUGMENT_FIELDS]
    for field, location in locations:
        if location is not None:
            try:
                yield _mixed_recordings(subject, field, location)
            except (DataError, StorageError) as error:
                yield found_in(error, f"{field}: ")
    if not any(location for _, location in locations):
        yield ok("no recordings are mixed into clips")


def _mixed_recordings(subject: Subject, field: str, location: str) -> Finding:
    rows = locate_mixed(field, location, subject.config.data, subject.config.run.storage_options, None)
    count = len(rows.table)
    chosen = rows.table.take(sorted(np.random.default_rng(0).permutation(count)[:MAX_DECODED].tolist())).to_pylist()
    bad: list[str] = []
    for row in chosen:
        try:
            read_row(row, rows.reader)
        except AudioError as error:
            bad.append(f"{row['audio']}: {error}")
    read = counted(count, "recording") if len(chosen) == count else f"{len(chosen)} of {count} recordings"
    if not bad:
        return ok(f"{field}: {read} in {location} can be read")
    text = f"{field}: {len(bad)} of {read} in {location} cannot be read ({named(bad)}); fix or remove them"
    # If none can be read here, the nodes may have them.
    return unread(text) if len(bad) == len(chosen) else problem(text)


def _train_durations(subject: Subject, split: Split, recordings: Recordings) -> Finding:
    data = subject.config.data
    durations_s = recordings.durations_s[recordings.known]
    longest_s = min(data.max_duration_s, subject.context_s)
    field = "data.max_duration_s" if data.max_duration_s <= subject.context_s else "the model's longest input,"
    long, short = durations_s > longest_s, durations_s < data.min_duration_s
    clips = _of(len(durations_s), len(split.table), "clips", "whose duration is known")
    if not (long | short).any():
        return ok(f"train: {clips} are between {data.min_duration_s:g} and {longest_s:g} s")
    parts = []
    if long.any():
        longest = _longest(split, recordings, longest_s)
        parts.append(f"{int(long.sum())} of {clips} are longer than {field} {longest_s:g} s ({longest})")
    if short.any():
        parts.append(f"{int(short.sum())} of {clips} are shorter than data.min_duration_s {data.min_duration_s:g} s")
    text = "train: " + ", and ".join(parts)
    if len(durations_s) == len(split.table) and (long | short).all():
        return problem(f"{text}: nothing is left to train on; widen the bounds, or cut the recordings")
    return warning(f"{text}: they will be left out, and counted; cut them into utterances, or move the bounds")


def _scored_durations(subject: Subject, split: Split, recordings: Recordings) -> Finding:
    context_s = subject.context_of(split)
    if math.isinf(context_s):
        return skipped(f"{split.name}: the model could not be opened, so its longest input is not known")
    known = np.flatnonzero(recordings.known)
    try:
        refuse_long_clips(split.table["id"].take(known), recordings.durations_s[known], context_s, split.name)
    except DataError as error:
        refused = subject.config.data.too_long_eval == "refuse"
        text = f"{error}; the longest: {_longest(split, recordings, context_s)}"
        return problem(text) if refused else warning(f"{text}; they will not be scored")
    return ok(
        f"{split.name}: {_of(len(known), len(split.table), 'clips', 'whose duration is known')} fit into the model's "
        f"{context_s:g} s"
    )


def _of(count: int, total: int, things: str, which: str) -> str:
    return f"{total} {things}" if count == total else f"{count} {things} {which} (of {total})"


def _longest(split: Split, recordings: Recordings, limit_s: float) -> str:
    durations_s = np.where(recordings.known, recordings.durations_s, 0.0)
    rows = [int(row) for row in np.argsort(-durations_s, kind="stable")[:3] if durations_s[row] > limit_s]
    return ", ".join(f"{split.table['id'][row].as_py()}: {durations_s[row]:.1f} s" for row in rows)


def _shared_recordings(subject: Subject) -> Iterator[Finding]:
    splits = [split for split in subject.splits if split.source.has_file_per_recording]
    spans = {split.name: _spans(split.table) for split in splits}
    for (first, ours), (second, theirs) in combinations(spans.items(), 2):
        shared = sorted(path for path in ours.keys() & theirs.keys() if _overlap(ours[path], theirs[path]))
        if shared:
            yield problem(
                f"{counted(len(shared), 'recording', 'is', 'are')} in both data.{first} and data.{second} "
                f"({named(shared)}): the score would be of what was trained on; take them out of one"
            )


def _spans(table: pa.Table) -> dict[str, list[tuple[float, float]]]:
    """Returns start and end of each segment in seconds, by recording."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for path, offset_s, duration_s in zip(
        *(table[name].to_pylist() for name in ("audio", "offset_s", "duration_s")), strict=True
    ):
        is_open = offset_s is None or duration_s is None
        spans.setdefault(path, []).append((offset_s or 0.0, math.inf if is_open else offset_s + duration_s))
    return spans


def _overlap(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> bool:
    ends = [-math.inf, -math.inf]
    for start, end, which in sorted([*((*span, 0) for span in first), *((*span, 1) for span in second)]):
        if start < ends[1 - which]:
            return True
        ends[which] = max(ends[which], end)
    return False


def _plain(text: str) -> str:
    """Returns a transcript in lower case, without punctuation at its ends."""
    return text.casefold().strip(".,;:!?…¿¡\"'«»„“”- ")


# The quick checks first.
CHECKS = (
    check_manifests,
    check_transcripts,
    check_normalizer,
    check_leakage,
    check_recordings,
    check_durations,
    check_augmentation,
)
