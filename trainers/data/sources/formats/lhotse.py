"""Reads Lhotse's cuts in JSON lines, whose recordings are files or, in Shar, members of a tar next to the cuts.

Lhotse itself would run the commands of recordings of type `command`; this module runs none.
"""

import gzip
import io
import posixpath
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainers.data.sources.archives.archive_index import ArchiveIndex
from trainers.data.sources.manifest_fields import absolute, base_of, decode, json_objects, require_text, to_seconds
from trainers.errors import DataError

CUTS, RECORDINGS, JSON_LINES, TAR = "cuts.", "recording.", ".jsonl", ".tar"
_GZIP, _MOST_BYTES = b"\x1f\x8b", 4 * 2**30
# Maximum difference, from rounding, between a cut and its complete recording.
_ROUNDED_S = 0.001


def text_of_cuts(location: str, content: bytes) -> str:
    """Returns the text of a manifest of cuts, which may be compressed.

    Raises DataError if the manifest is damaged, has more than _MOST_BYTES, or is not UTF-8.
    """
    if content.startswith(_GZIP):
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{location}: it is damaged ({error}): fetch it again") from None
    if len(content) > _MOST_BYTES:
        raise DataError(f"{location}: it has more than {_MOST_BYTES} bytes: split it")
    return decode(location, content)


def read_cuts(location: str, text: str, shard: ArchiveIndex | None) -> Iterator[dict[str, Any]]:
    """Yields rows, in the form that `table_of` takes, of a manifest of cuts; for Shar, `shard` has their recordings.

    Raises DataError, which names line and fix, for a cut that is wrong, or has several recordings.
    """
    members = (
        {posixpath.splitext(name)[0]: name for name in shard.members if not name.endswith(".json")} if shard else {}
    )
    for line, cut in json_objects(location, text):
        try:
            yield _row(location, cut, shard.location if shard is not None else "", members)
        except (ValueError, TypeError, KeyError) as error:
            problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            raise DataError(f"{location}: line {line}: cut {cut.get('id')!r}: {problem}") from None


def _row(location: str, cut: Mapping[str, Any], tar: str, members: Mapping[str, str]) -> dict[str, Any]:
    if cut.get("type", "MonoCut") != "MonoCut":
        raise ValueError(f"is a {cut['type']}: save it as recordings of its own (cuts.save_audios)")
    name, recording = str(cut["id"] or ""), cut.get("recording")
    if not name.strip():
        raise ValueError("its id is empty: fill it in")
    if not isinstance(recording, dict):
        raise ValueError("has no recording: save its audio, features are computed here")
    if recording.get("transforms"):
        raise ValueError("its recording is transformed when it is read: save it first (cuts.save_audios)")
    start_s, duration_s = to_seconds(str(cut.get("start", 0))), to_seconds(str(cut["duration"]))
    length_s = to_seconds(str(recording["duration"]))
    is_complete = start_s == 0 and abs(duration_s - length_s) < _ROUNDED_S
    sources = recording["sources"]
    if not isinstance(sources, list) or len(sources) != 1 or not isinstance(sources[0], dict):
        raise ValueError(f"its recording has the sources {sources!r}: give one file")
    source = sources[0]
    if len(source.get("channels") or [0]) != 1:
        raise ValueError("its recording has several channels: store each as a recording of its own")
    audio = _audio(location, name, source, tar, members)
    row = _described(cut) | {"id": name, "audio": audio, "duration_s": duration_s}
    require_text(list(row), [str(value) for value in row.values()])
    return row if is_complete else row | {"offset_s": start_s}


def _audio(location: str, name: str, source: Mapping[str, Any], tar: str, members: Mapping[str, str]) -> str:
    kind, path = source["type"], str(source["source"])
    if kind == "shar" and tar:
        return f"{tar}/{members.get(name, name)}"
    if kind not in ("file", "url"):
        fix = "name the folder as shar:" if kind == "shar" else "save it as a file (cuts.save_audios); it is not run"
        raise ValueError(f"its recording is of the type {kind!r}: {fix}")
    if not path.strip():
        raise ValueError("its recording has no path: fill it in")
    return absolute(base_of(location), path)


def _described(cut: Mapping[str, Any]) -> dict[str, Any]:
    """Returns text, speaker and language of a cut's supervisions, in the order of their times."""
    spoken: Sequence[Mapping[str, Any]] = sorted(cut.get("supervisions") or (), key=lambda each: float(each["start"]))
    texts = [str(each["text"]).strip() for each in spoken if each.get("text")]
    row: dict[str, Any] = {"text": " ".join(texts)}
    for column in ("speaker", "language"):
        values = {str(each[column]) for each in spoken if each.get(column)}
        row[column] = values.pop() if len(values) == 1 else None
    return row
