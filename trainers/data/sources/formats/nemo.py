"""Reads NeMo's tarred data sets: manifests of JSON lines, and tars of the recordings that they name."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainers.data.sources.archives.archive_index import ArchiveIndex
from trainers.data.sources.archives.archive_path import SUFFIX
from trainers.data.sources.manifest_fields import json_rows, refuse_unread, to_seconds
from trainers.errors import DataError

FIELDS = ("audio_filepath", "text", "duration", "offset", "shard_id", "speaker", "lang", "language")
# The number in a tar's name, which rows have as their shard_id: audio_7.tar.
_NUMBER = re.compile(rf".*_(\d+)\D*{SUFFIX}", re.IGNORECASE)
# Suffix of the names in further rows of a recording.
_SUB = re.compile(r"-sub\d+(?=\.\w+$|$)")


def read_tarred(
    location: str, text: str, tars: Sequence[ArchiveIndex], own: ArchiveIndex | None
) -> Iterator[dict[str, Any]]:
    """Yields rows, in the form that `table_of` takes, of a manifest whose recordings are in tars; each with its `tar`.

    A recording is found by name in the tar of its `shard_id`: the number in the tar's name, or if names have none, its
    position from 0. Without a `shard_id`, the recording is in `own`, or else in any tar. As in NeMo, rows with an
    offset are segments, and `a-sub1.wav` is a further segment of `a.wav`.

    `own` is the tar of this manifest, if each manifest has one. Raises DataError for a line that is wrong, or whose tar
    does not exist.
    """
    keys, rows = json_rows(location, text, FIELDS)
    refuse_unread(location, keys, FIELDS)
    numbered = _numbered(tars)
    places: dict[str, list[ArchiveIndex]] = {}
    for tar in tars if own is None else (own,):
        for name in tar.members:
            places.setdefault(name, []).append(tar)
    for line, values in rows:
        given = dict(zip(FIELDS, values, strict=True))
        try:
            yield _row(given, numbered, places)
        except ValueError as error:
            raise DataError(f"{location}: line {line}: {error}") from None


def _numbered(tars: Sequence[ArchiveIndex]) -> Mapping[int, ArchiveIndex]:
    found = [_NUMBER.fullmatch(posixpath.basename(tar.location)) for tar in tars]
    numbers = [int(each[1]) for each in found if each is not None]
    if len(set(numbers)) != len(tars):
        numbers = list(range(len(tars)))
    return dict(zip(numbers, tars, strict=True))


def _row(
    given: Mapping[str, str], numbered: Mapping[int, ArchiveIndex], places: Mapping[str, Sequence[ArchiveIndex]]
) -> dict[str, Any]:
    path, shard = posixpath.normpath(given["audio_filepath"].strip() or "."), given["shard_id"]
    if path == ".":
        raise ValueError("'audio_filepath' is empty: fill it in, or take the row out")
    names = (path, _SUB.sub("", path))
    if shard:
        if not shard.isdecimal() or int(shard) not in numbered:
            known = f"{min(numbered)} to {max(numbered)}"
            raise ValueError(f"'shard_id' is {shard}, and the tars are {known}: name them all as ?tars=")
        tar = numbered[int(shard)]
        name = next((each for each in names if each in tar.members), path)
    else:
        name = next((each for each in names if each in places), path)
        holders = places.get(name, ())
        if len(holders) != 1:
            raise ValueError(f"{path!r} is in {len(holders)} of the tars: give its 'shard_id'")
        tar = holders[0]
    offset, duration = given["offset"], given["duration"]
    stem = posixpath.splitext(path)[0]
    return {
        # Several rows may have the same recording.
        "id": f"{stem}@{offset}" if offset else stem,
        "audio": f"{tar.location}/{name}",
        "tar": tar.location,
        "text": given["text"],
        "speaker": given["speaker"] or None,
        "language": given["language"] or given["lang"] or None,
        "duration_s": to_seconds(duration) if duration else None,
        "offset_s": to_seconds(offset) if offset else None,
    }
