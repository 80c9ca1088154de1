"""Reads SpeechBrain's data manifests, which are JSON objects or CSV files, into one Arrow table."""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trainers.config.parts.data_part import Quoting
from trainers.config.strict_loading import load_json
from trainers.data.sources.manifest import ParsedTable, TableRules, join_tables
from trainers.data.sources.manifest_fields import (
    DATA_ROOT,
    Row,
    decode,
    delimited_rows,
    refuse_unread,
    text_values,
)
from trainers.errors import DataError

_TRANSCRIPTS = ("wrd", "words", "text", "transcript")
_DURATIONS = ("duration", "length")
_FIELDS = ("wav", *_TRANSCRIPTS, *_DURATIONS, "offset", "spk_id", "wav_opts")
_OTHER_ROOT = re.compile(r"(\$\{\w+\}|\$\w+|\{\w+\})/")
# Parts in the options of the older form: "start:10000 stop:26000".
_PART = re.compile(r"\b(start|stop|channel)\s*:")


# An utterance: its line or its quoted id, its id, and its values by _FIELDS, "" for missing ones.
_Record = tuple[int | str, str, Mapping[str, str]]


def read_speechbrain(location: str, content: bytes, *, data_root: str | None, quoting: Quoting = "csv") -> pa.Table:
    """Reads a data manifest of SpeechBrain, checking every row; returns a table of ROW_SCHEMA, in its order.

    JSON is an object of utterances by id. Each has `wav`, which is a path or {"file": path}; its transcript as `wrd`,
    `words`, `text` or `transcript`; and optionally `duration` or `length`, in seconds, and `spk_id`. CSV has a column
    for each of these, and `ID`. If an utterance has an `offset`, in seconds, rows are segments with their `duration`
    from that offset. Parts of recordings in samples are refused; other fields are not read.

    Relative audio paths, and those that begin with a relative `data_root`, are relative to the manifest's folder;
    `data_root` is the value of `{data_root}`, `$data_root` and `${data_root}` in audio paths; None if not known. Raises
    DataError if the manifest cannot be used; the message names the line or the id, and the fix.
    """
    text, suffix = decode(location, content), posixpath.splitext(location)[1].lower()
    if suffix not in (".json", ".csv"):
        raise DataError(f"{location}: the extension {suffix!r} is not a SpeechBrain manifest's: name it .json or .csv")
    unit = "utterance" if suffix == ".json" else "line"
    fields, records = _json_records(location, text) if suffix == ".json" else _csv_records(location, text, quoting)
    refuse_unread(location, fields, _FIELDS)

    def rows() -> Iterator[Row]:
        for number, name, values in records:
            try:
                yield number, _row(location, name, values, data_root)
            except ValueError as error:
                raise DataError(f"{location}: {unit} {number}: {error}") from None

    return join_tables([ParsedTable(location, ("wav", "text", "id"), rows(), unit)], TableRules("wav"))


def _csv_records(location: str, text: str, quoting: Quoting) -> tuple[Collection[str], Iterable[_Record]]:
    header, rows = delimited_rows(location, text, ",", ("ID", *_FIELDS), quoting=quoting, skip_spaces=True)
    if "ID" not in header:
        raise DataError(f"{location}: no column 'ID' among {', '.join(header)}: name the column of ids so")
    _require_fields(f"{location}: the header", header)
    return header, ((line, name, dict(zip(_FIELDS, values, strict=True))) for line, (name, *values) in rows)


def _json_records(location: str, text: str) -> tuple[Collection[str], Iterable[_Record]]:
    try:
        content = load_json(text)
    except ValueError as error:
        raise DataError(f"{location}: it is not JSON of SpeechBrain ({error}): write one object by each id") from None
    if not isinstance(content, dict):
        raise DataError(f"{location}: it is not a JSON object: write an object by each id, no list")
    fields: dict[str, None] = {}
    records: list[_Record] = []
    for name, written in content.items():
        place = f"utterance {name!r}"
        if not isinstance(written, dict):
            raise DataError(f"{location}: {place} is {written!r}: write an object with 'wav' and a transcript")
        _require_fields(f"{location}: {place}", written)
        fields |= dict.fromkeys(written)
        try:
            given = written | {"id": name, "wav": _file_of(written["wav"])}
            _, *values = text_values(given, ("id", *_FIELDS), ("wav", *_TRANSCRIPTS))
        except ValueError as error:
            raise DataError(f"{location}: {place}: {error}") from None
        records.append((repr(name), name, dict(zip(_FIELDS, values, strict=True))))
    return fields, records


def _require_fields(where: str, fields: Collection[str]) -> None:
    if "wav" not in fields:
        raise DataError(f"{where} has no 'wav': add it, with the path of the recording")
    if not any(name in fields for name in _TRANSCRIPTS):
        raise DataError(f"{where} has no transcript: add it as {', '.join(map(repr, _TRANSCRIPTS))}")


def _file_of(wav: Any) -> Any:
    """Returns the path of a `wav`, which may be an object. Raises ValueError if it names several files, or a part."""
    if not isinstance(wav, dict):
        return wav
    if "start" in wav or "stop" in wav:
        raise ValueError(
            "'wav' has 'start' or 'stop', in samples at a rate that is not known here: take them out, and give "
            "'offset' and 'duration' next to 'wav', in seconds"
        )
    if wav.keys() != {"file"}:
        raise ValueError(f"'wav' is {wav!r}: give the path of one recording")
    return wav["file"]


def _row(location: str, name: str, values: Mapping[str, str], data_root: str | None) -> Sequence[str]:
    """Returns values in the order of `TableRules.wanted`. Raises ValueError with the fix for an invalid value."""
    if _PART.search(values["wav_opts"]):
        raise ValueError(
            f"'wav_opts' is {values['wav_opts']!r}, which says which part of the recording is meant, and is not read: "
            "take that out, give segments as 'offset' and 'duration', in seconds, and channels as recordings"
        )
    path, text = _path(location, values["wav"], data_root), _one_of(values, _TRANSCRIPTS)
    return path, text, name, values["spk_id"], _one_of(values, _DURATIONS), "", values["offset"]


def _one_of(values: Mapping[str, str], names: Iterable[str]) -> str:
    given = {name: values[name] for name in names if values[name]}
    if len(set(given.values())) > 1:
        raise ValueError(f"{' and '.join(map(repr, given))} have different values: keep the one that is meant")
    return next(iter(given.values()), "")


def _path(location: str, path: str, data_root: str | None) -> str:
    """Returns a path without placeholders. Raises ValueError if a placeholder is unknown."""
    if DATA_ROOT.search(path):
        if not data_root:
            fix = f"give the corpus's folder with the manifest, as speechbrain:{location}?data_root=/path/of/the/corpus"
            raise ValueError(f"'wav' is {path!r}, and data_root is not known: {fix}")
        folder = data_root.rstrip("/") + "/"
        return DATA_ROOT.sub(lambda found: folder if found[1] else data_root, path)
    if other := _OTHER_ROOT.match(path):
        raise ValueError(f"'wav' is {path!r}, and {other[1]} is not known: write {{data_root}} in its place")
    return path
