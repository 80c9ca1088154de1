"""Draws validation and test clips, if possible from speakers that are not in train. Pure."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

TRAIN, VALIDATION, TEST = "train", "validation", "test"
HELD_OUT = 0.1
# A group of clips with a larger share of all clips is not held out alone, so that train keeps half of all clips.
LARGEST_SHARE = 0.25
# Largest share of train clips that are left out because a held-out clip has the same text.
MOST_LEFT_OUT = 0.1
LEAST_GROUPS = 3


@dataclass(frozen=True)
class Clip:
    """Fields of a clip that decide its split; names and folders do not depend on the location of the data."""

    name: str
    text: str
    speaker: str | None = None
    folder: str = ""
    recording: str = ""


@dataclass(frozen=True)
class Splitting:
    """The split of each clip in order (None for clips without a split), and notes for the user."""

    splits: tuple[str | None, ...]
    notes: tuple[str, ...]


def split_clips(clips: Sequence[Clip], *, wanted: Sequence[str] = (TEST, VALIDATION)) -> Splitting:
    """Draws a tenth of the clips for each wanted split, by hashes, so that the order of the input does not matter.

    No speaker is in two splits. If speakers are unknown or too few, no folder is in two splits, otherwise no recording
    with several clips, otherwise no text, otherwise clips are drawn one by one. Each split and train need a clip.
    """
    target = max(1, round(HELD_OUT * len(clips)))
    for key_of, says in _ways(clips):
        keys = [key_of(clip) for clip in clips]
        held_out = _held_out(Counter(key for key in keys if key is not None), wanted, target, len(clips))
        if held_out is not None:
            splits = [TRAIN if key is None else held_out.get(key, TRAIN) for key in keys]
            return _without_shared_texts(clips, splits, says)
    raise AssertionError("there are fewer clips than splits")


def draw(names: Sequence[str], most: int | None) -> list[int]:
    """Returns, in order, the positions of `most` names (all, if None or fewer) that are drawn by their hashes."""
    return sorted(sorted(range(len(names)), key=lambda row: _hash(names[row]))[:most])


def shared_texts(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns the number of texts in `one` that are also in `other`."""
    there = {_folded(text) for text in other}
    return sum(_folded(text) in there for text in one)


def _ways(clips: Sequence[Clip]) -> list[tuple[Callable[[Clip], str | None], list[str]]]:
    speakers = {clip.speaker for clip in clips if clip.speaker is not None}
    unnamed = sum(clip.speaker is None for clip in clips)
    unknown = "speakers are not known"
    if speakers:
        count = "one speaker" if len(speakers) == 1 else f"{len(speakers)} speakers"
        unknown = f"only {count}, in all splits, so that scores do not tell how new voices are recognized"
    ways: list[tuple[Callable[[Clip], str | None], list[str]]] = []
    if len(speakers) >= LEAST_GROUPS and unnamed <= len(clips) / 2:
        more = [f"clips without a speaker, all in train: {unnamed:,}"] if unnamed else []
        ways.append((lambda clip: clip.speaker, [f"no speaker is in two splits ({len(speakers)} speakers)", *more]))
    if not speakers and len({clip.folder for clip in clips}) >= LEAST_GROUPS:
        ways.append((lambda clip: clip.folder, [f"{unknown}: no folder is in two splits"]))
    if LEAST_GROUPS <= len({clip.recording for clip in clips}) < len(clips):
        ways.append((lambda clip: clip.recording, [f"{unknown}; no recording is in two splits"]))
    if len({_folded(clip.text) for clip in clips}) >= len(clips) / 2:
        ways.append((lambda clip: _folded(clip.text), [f"{unknown}; no text is in two splits"]))
    ways.append((lambda clip: clip.name, [f"{unknown}; texts are few, and the same in all splits"]))
    return ways


def _held_out(sizes: Mapping[str, int], wanted: Sequence[str], target: int, total: int) -> dict[str, str] | None:
    waiting = sorted(sizes, key=_hash)
    found: dict[str, str] = {}
    for split in wanted:
        chosen, taken = list[str](), 0
        for key in waiting:
            if taken < target and taken + sizes[key] <= 1.5 * target:
                chosen.append(key)
                taken += sizes[key]
        if taken < target / 2:
            # One larger group is a better sample than several very small groups.
            larger = min((key for key in waiting if key not in chosen), key=lambda key: sizes[key], default=None)
            if larger is not None and sizes[larger] <= max(1, LARGEST_SHARE * total):
                chosen = [larger]
            elif not chosen:
                return None
        found |= dict.fromkeys(chosen, split)
        waiting = [key for key in waiting if key not in found]
    return found if waiting else None


def _without_shared_texts(clips: Sequence[Clip], splits: Sequence[str], notes: Sequence[str]) -> Splitting:
    held_out = {_folded(clip.text) for clip, split in zip(clips, splits, strict=True) if split != TRAIN}
    repeats = [split == TRAIN and _folded(clip.text) in held_out for clip, split in zip(clips, splits, strict=True)]
    count, trained = sum(repeats), splits.count(TRAIN)
    if count > MOST_LEFT_OUT * trained:
        note = f"clips of train with a text that is also in validation or test: {count:,} of {trained:,}"
        return Splitting(tuple(splits), (*notes, note))
    left_out = [f"left out of train, clips with a text of validation or test: {count:,}"] if count else []
    kept = (None if repeated else split for split, repeated in zip(splits, repeats, strict=True))
    return Splitting(tuple(kept), (*notes, *left_out))


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()
