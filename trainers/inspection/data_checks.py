"""Manifests and recordings: what would stop training, leave clips out in silence, or falsify a score."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps

import numpy as np
import pyarrow as pa

from trainers.config.schema import S3_SCHEME
from trainers.data.selection import check_scorable
from trainers.errors import DataError
from trainers.inspection.notes import Check, Note, fault, named, ok, skipped, warning
from trainers.inspection.recordings import Recordings
from trainers.inspection.subject import Split, Subject

# A few everyday sentences are said in any two sets; more than this, and the score is of what was learned by heart.
MOST_SHARED = 0.01


def _of_open_splits(look: Callable[[Subject], Iterator[Note]]) -> Callable[[Subject], Iterator[Note]]:
    """Makes a check say that there was nothing to look into; `check_manifests` says why."""

    @wraps(look)
    def check(subject: Subject) -> Iterator[Note]:
        if subject.splits:
            yield from look(subject)
        else:
            yield skipped("no manifest could be opened")

    return check


def check_manifests(subject: Subject) -> Iterator[Note]:
    """Opens every split: file, columns, encoding, unique ids."""
    yield from subject.split_notes


@_of_open_splits
def check_recordings(subject: Subject) -> Iterator[Note]:
    """Looks for the recordings."""
    for split in subject.splits:
        seen = subject.recordings(split)
        looked = _of(seen.looked_at, len(split.table), "recordings", "looked for")
        absent = len(seen.absent)
        if seen.trouble is not None:
            yield subject.unreachable(f"{split.name}: {seen.trouble}")
        elif not absent:
            yield ok(f"{split.name}: {looked} are there")
        else:
            most = subject.config.data.max_bad_fraction
            reasons = ", ".join(f"{count} × {reason}" for reason, count in Counter(seen.absent.values()).most_common(3))
            text = f"{split.name}: {absent} of {looked} cannot be read: {reasons} ({named(list(seen.absent))})"
            if absent == seen.looked_at:
                text = f"{text}; check the paths in data.{split.name}: {split.origin}"
                # A bucket is the same from everywhere.
                in_bucket = split.table["audio"][0].as_py().startswith(S3_SCHEME)
                yield fault(text) if in_bucket else subject.unreachable(text)
            elif absent > most * seen.looked_at:
                yield fault(f"{text}; mend or remove them, or raise data.max_bad_fraction {most:g}")
            else:
                yield warning(f"{text}; they will be left out, and counted")


@_of_open_splits
def check_transcripts(subject: Subject) -> Iterator[Note]:
    """Counts transcripts without a word."""
    for split in subject.splits:
        empty = [name for name, text in zip(split.ids, split.texts, strict=True) if not text]
        count = f"{split.name}: {len(empty)} of {len(split.texts)} transcripts are empty"
        if len(empty) == len(split.texts):
            yield fault(f"{count}; check data.text_column_name {subject.config.data.text_column_name!r}")
        elif empty and split.name == "train":
            yield warning(f"{count} ({named(empty)}): they will be left out of training; transcribe or remove them")
        elif empty:
            yield warning(
                f"{count} ({named(empty)}): every word heard there counts as an insertion; transcribe or remove them"
            )
        else:
            yield ok(f"{split.name}: none of {len(split.texts)} transcripts is empty")


@_of_open_splits
def check_durations(subject: Subject) -> Iterator[Note]:
    """Compares durations with the bounds of training, and with what the model hears when scored."""
    for split in subject.splits:
        seen = subject.recordings(split)
        if not seen.known.any():
            yield skipped(f"{split.name}: neither the manifest nor a header says a duration")
        elif split.name == "train":
            yield _train_durations(subject, split, seen)
        else:
            yield _scored_durations(subject, split, seen)


@_of_open_splits
def check_leakage(subject: Subject) -> Iterator[Note]:
    """Looks for recordings and transcripts of evaluation splits in the training split, and in each other."""
    yield from _shared_recordings(subject)
    train = subject.split("train")
    if train is None:
        yield skipped("data.train is not open, so that nothing can be compared with it")
        return
    learned = {_plain(text) for text in train.texts} - {""}
    for split in subject.splits:
        if split.name == "train":
            continue
        texts = [(name, _plain(text)) for name, text in zip(split.ids, split.texts, strict=True)]
        texts = [(name, text) for name, text in texts if text]
        known = [name for name, text in texts if text in learned]
        share = len(known) / max(1, len(texts))
        count = f"{split.name}: {len(known)} of {len(texts)} transcripts ({share:.1%}) are also trained on"
        if share > MOST_SHARED:
            yield warning(
                f"{count} ({named(known)}): the score will be better than on new sentences; "
                "split by sentence, unless the task is a closed set of phrases"
            )
        else:
            yield ok(count)


def _train_durations(subject: Subject, split: Split, seen: Recordings) -> Note:
    data = subject.config.data
    durations_s = seen.durations_s[seen.known]
    longest_s = min(data.max_duration_s, subject.context_s)
    field = "data.max_duration_s" if data.max_duration_s <= subject.context_s else "what the model hears,"
    long, short = durations_s > longest_s, durations_s < data.min_duration_s
    clips = _of(len(durations_s), len(split.table), "clips", "whose duration is known")
    if not (long | short).any():
        return ok(f"train: {clips} are between {data.min_duration_s:g} and {longest_s:g} s")
    parts = []
    if long.any():
        parts.append(
            f"{int(long.sum())} of {clips} are longer than {field} {longest_s:g} s ({_longest(split, seen, longest_s)})"
        )
    if short.any():
        parts.append(f"{int(short.sum())} of {clips} are shorter than data.min_duration_s {data.min_duration_s:g} s")
    text = "train: " + ", and ".join(parts)
    if len(durations_s) == len(split.table) and (long | short).all():
        return fault(f"{text}: nothing is left to train on; widen the bounds, or cut the recordings")
    return warning(f"{text}: they will be left out, and counted; cut them into utterances, or move the bounds")


def _scored_durations(subject: Subject, split: Split, seen: Recordings) -> Note:
    known = np.flatnonzero(seen.known)
    index = pa.table(
        {
            "id": split.table["id"].take(known),
            "duration_s": seen.durations_s[known],
            # Transcripts have a check of their own.
            "text": ["-"] * len(known),
        }
    )
    try:
        check_scorable(index, context_s=subject.context_s, split=split.name)
    except DataError as error:
        return fault(f"{error}; the longest: {_longest(split, seen, subject.context_s)}")
    return ok(
        f"{split.name}: {_of(len(known), len(split.table), 'clips', 'whose duration is known')} fit into the model's "
        f"{subject.context_s:g} s"
    )


def _of(count: int, total: int, things: str, which: str) -> str:
    return f"{total} {things}" if count == total else f"{count} {things} {which} (of {total})"


def _longest(split: Split, seen: Recordings, limit_s: float) -> str:
    durations_s = np.where(seen.known, seen.durations_s, 0.0)
    rows = [int(row) for row in np.argsort(-durations_s, kind="stable")[:3] if durations_s[row] > limit_s]
    return ", ".join(f"{split.table['id'][row].as_py()}: {durations_s[row]:.1f} s" for row in rows)


def _shared_recordings(subject: Subject) -> Iterator[Note]:
    splits = [split for split in subject.splits if "audio_bytes" not in split.table.column_names]
    paths = {split.name: set(split.table["audio"].to_pylist()) for split in splits}
    for position, first in enumerate(splits):
        for second in splits[position + 1 :]:
            shared = sorted(paths[first.name] & paths[second.name])
            if shared:
                yield fault(
                    f"{len(shared)} recordings are in both data.{first.name} and data.{second.name} "
                    f"({named(shared)}): the score would be of what was trained on; take them out of one"
                )


def _plain(text: str) -> str:
    """A transcript without what hardly makes it another sentence: case, and punctuation at its ends."""
    return text.casefold().strip(".,;:!?…¿¡\"'«»„“”- ")


CHECKS = (
    Check("manifests", "every split opens, has its columns, and its ids are unique", check_manifests),
    Check("transcripts", "no transcript is empty or missing", check_transcripts),
    Check("leakage", "nothing that is scored was trained on", check_leakage),
    Check("recordings", "the recordings are where the manifests say", check_recordings),
    Check("durations", "clips are neither too long for the model nor out of bounds", check_durations),
)
