"""NeMo's tarred data sets: manifests of JSON lines, and tars of the recordings that they name."""

import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

from trainers.data.sources.archives.archive_index import ArchiveIndex
from trainers.data.sources.manifest_fields import json_rows, refuse_unread, to_seconds
from trainers.errors import DataError

FIELDS = ("audio_filepath", "text", "duration", "offset", "shard_id", "speaker", "lang", "language")


def read_tarred(location: str, text: str, tars: Sequence[ArchiveIndex]) -> Iterator[dict[str, Any]]:
    """Reads rows, as `table_of` takes them, of a manifest whose recordings lie in tars.

    A recording is found by its name in the tar of its `shard_id`, which counts the tars from 0; without one, in all.
    As in NeMo, several rows may be segments of one recording.

    Args:
        location: The manifest in messages.
        text: What it holds.
        tars: The tars, in the order of their numbers.

    Raises:
        DataError: a line is wrong, or there is no such tar.
    """
    keys, rows = json_rows(location, text, FIELDS)
    refuse_unread(location, keys, FIELDS)
    places: dict[str, list[str]] = {}
    for tar in tars:
        for name in tar.members:
            places.setdefault(name, []).append(tar.location)
    for line, values in rows:
        given = dict(zip(FIELDS, values, strict=True))
        try:
            yield _row(given, places, tars)
        except ValueError as error:
            raise DataError(f"{location}: line {line}: {error}") from None


def _row(given: dict[str, str], places: dict[str, list[str]], tars: Sequence[ArchiveIndex]) -> dict[str, Any]:
    path = given["audio_filepath"]
    if not path.strip():
        raise ValueError("'audio_filepath' is empty: fill it in, or take the row out")
    shard = given["shard_id"]
    if shard:
        if not shard.isdecimal() or int(shard) >= len(tars):
            raise ValueError(f"'shard_id' is {shard}, and there are {len(tars)} tars: name them all as ?tars=")
        tar = tars[int(shard)].location
    else:
        holders = places.get(path, [])
        if len(holders) != 1:
            raise ValueError(f"{path!r} is in {len(holders)} of the {len(tars)} tars: give its 'shard_id'")
        tar = holders[0]
    offset, duration = given["offset"], given["duration"]
    name = posixpath.splitext(path)[0]
    return {
        # NeMo's own ids: several rows may be of one recording.
        "id": f"{name}@{offset}" if offset else name,
        "audio": f"{tar}/{path}",
        "text": given["text"],
        "speaker": given["speaker"] or None,
        "language": given["language"] or given["lang"] or None,
        "duration_s": to_seconds(duration) if duration else None,
        "offset_s": to_seconds(offset) if offset else None,
    }
