"""Reads Kaldi data folders: `wav.scp` and `text`, and `segments`, `utt2spk`, `utt2lang` if they exist, into one table.

The requirements of Kaldi's own `validate_data_dir.sh` for ids apply here, too; no row is dropped.
"""

import io
import re
from collections.abc import Callable, Collection, Mapping
from itertools import permutations
from typing import NamedTuple

import pyarrow as pa

from trainers.config.storage_location import is_url
from trainers.data.sources.data_source import table_of
from trainers.data.sources.manifest_fields import absolute, base_of, decode, examples, to_seconds
from trainers.errors import DataError, NotHereError

_REQUIRED = ("wav.scp", "text")
# Files with one word for each utterance, and their column.
_OF_UTTERANCES = {"utt2spk": "speaker", "utt2lang": "language"}
_OPTIONAL = ("segments", *_OF_UTTERANCES)
# The spaces of Kaldi, for which no-break spaces and the like are part of ids and words.
_SPACE = " \t\n\v\f"
_SPACES = re.compile(f"[{_SPACE}]+")
# Kaldi's notation for a position in an archive, or a range of its rows.
_IN_ARCHIVE = re.compile(r".*:\d+(\[.*\])?")
_TO_THE_END = re.compile(r"-1(\.0*)?")


class _Entry(NamedTuple):
    """One line of a file, without its id."""

    line: int
    value: str


class _Segment(NamedTuple):
    """The part of a recording that is an utterance; without times, the complete recording."""

    recording: str
    offset_s: float | None = None
    duration_s: float | None = None


def read_kaldi(folder: str, read: Callable[[str], bytes | None]) -> tuple[pa.Table, bytes]:
    """Reads a Kaldi data folder, checking every line.

    A relative path in `wav.scp` is relative to the data folder, whatever folder the recipe ran in. Commands and parts
    of archives are refused. With `segments`, every row is a segment. `utt2dur` and `reco2dur` are not read.

    Args:
        folder: Its path or URL.
        read: Returns the content of a file in the folder by name; None if there is none.

    Returns:
        A table of ROW_SCHEMA in the order of `text`; and the bytes that determine its content: the names and contents
        of the files that were read.

    Raises:
        NotHereError: Neither `wav.scp` nor `text` is in a folder on this machine.
        DataError: A file is missing or wrong, or ids of files differ; the message names file, line, and the fix.
    """
    folder = folder.rstrip("/")
    contents = {name: content for name in (*_REQUIRED, *_OPTIONAL) if (content := read(name)) is not None}
    _require_files(folder, contents)
    entries = {name: _entries(f"{folder}/{name}", content) for name, content in contents.items()}
    texts = entries["text"]
    recordings = _recordings(f"{folder}/wav.scp", entries["wav.scp"])
    if "segments" in entries:
        segments = _segments(f"{folder}/segments", entries["segments"])
        _require_same(folder, {"text": texts, "segments": segments})
        _require_same(folder, {"segments": {part.recording: None for part in segments.values()}, "wav.scp": recordings})
    else:
        segments = {recording: _Segment(recording) for recording in recordings}
        _require_same(folder, {"text": texts, "wav.scp": recordings})
    for name in _OF_UTTERANCES.keys() & entries.keys():
        _require_same(folder, {"text": texts, name: entries[name]})
        _require_one_word(f"{folder}/{name}", entries[name])
    rows = (
        {
            "id": utterance,
            "audio": recordings[segments[utterance].recording],
            "text": entry.value,
            "offset_s": segments[utterance].offset_s,
            "duration_s": segments[utterance].duration_s,
            **{column: entries[name][utterance].value for name, column in _OF_UTTERANCES.items() if name in entries},
        }
        for utterance, entry in texts.items()
    )
    # NULs separate the files, since text files have none.
    return table_of(rows), b"".join(b"%b\0%b\0" % (name.encode(), contents[name]) for name in contents)


def _require_files(folder: str, contents: Collection[str]) -> None:
    missing = [name for name in _REQUIRED if name not in contents]
    if missing:
        is_elsewhere = len(missing) == len(_REQUIRED) and not is_url(folder)
        kind = NotHereError if is_elsewhere else DataError
        raise kind(f"{folder}: there is no {' and no '.join(missing)}: give a Kaldi data folder, which has both")


def _entries(location: str, content: bytes) -> dict[str, _Entry]:
    """Returns the lines of a file without their ids, by id."""
    entries: dict[str, _Entry] = {}
    for line, written in enumerate(io.StringIO(decode(location, content), newline=None), start=1):
        name, *values = _SPACES.split(written.strip(_SPACE), maxsplit=1)
        if name in entries:
            raise DataError(f"{location}: line {line}: {name!r} is in line {entries[name].line}, too: keep one of them")
        if name:
            entries[name] = _Entry(line, "".join(values))
    if not entries:
        raise DataError(f"{location}: the file is empty: write one line for each id, or run the recipe's preparation")
    return entries


def _recordings(location: str, entries: Mapping[str, _Entry]) -> dict[str, str]:
    """Returns the absolute path or URL of each recording."""
    base = base_of(location)
    recordings = {}
    for recording, (line, path) in entries.items():
        if "|" in path:
            problem = "a command, which is not run: convert the recordings to files first (wav-copy), and name those"
        elif _IN_ARCHIVE.fullmatch(path):
            problem = "a part of an archive: write each recording to a file of its own (wav-copy), and name those"
        elif not path:
            problem = "no path: write one after the id"
        else:
            recordings[recording] = absolute(base, path)
            continue
        raise DataError(f"{location}: line {line}: {path!r} of {recording!r} is {problem}")
    return recordings


def _segments(location: str, entries: Mapping[str, _Entry]) -> dict[str, _Segment]:
    segments = {}
    for utterance, (line, value) in entries.items():
        fields = _SPACES.split(value)
        where = f"{location}: line {line}: {utterance!r}"
        if len(fields) != 3:
            fix = "store each channel as a recording of its own, and write recording, start and end after the id"
            raise DataError(f"{where} has {value!r}: {fix}")
        recording, start, end = fields
        try:
            offset_s = to_seconds(start)
            end_s = None if _TO_THE_END.fullmatch(end) else to_seconds(end)
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        if end_s is not None and end_s <= offset_s:
            raise DataError(f"{where} starts at {start} s and ends at {end} s: correct it, or take the utterance out")
        segments[utterance] = _Segment(recording, offset_s, None if end_s is None else end_s - offset_s)
    return segments


def _require_one_word(location: str, entries: Mapping[str, _Entry]) -> None:
    for utterance, (line, value) in entries.items():
        if not value or _SPACES.search(value):
            raise DataError(f"{location}: line {line}: {utterance!r} has {value!r}: write one word after the id")


def _require_same(folder: str, ids: Mapping[str, Collection[str]]) -> None:
    """Raises DataError if ids differ; `ids` has those of two files, by file name."""
    found = []
    for one, other in permutations(ids):
        lacking = [name for name in ids[one] if name not in ids[other]]
        if lacking:
            found.append(f"{len(lacking)} ids of {one} are not in {other} ({examples(lacking)})")
    if found:
        fix = f"run utils/fix_data_dir.sh {folder}, which takes them out, or complete the files"
        raise DataError(f"{folder}: {', and '.join(found)}: {fix}")
