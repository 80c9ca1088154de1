"""Finds recordings in manifests, and replaces their paths; all other bytes stay unchanged."""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from trainers.data.sources.manifest_fields import AUDIO_COLUMNS, AUDIO_ENDINGS

TABLES = (".csv", ".tsv")
SUFFIXES = (*TABLES, ".json", ".jsonl")
# Delimiters of .csv files; the first with which the header names recordings is used.
_DELIMITERS = (",", ";", "\t", "|")
_BOM = "\ufeff"
_ENCODINGS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_ERRORS = {"utf-8": "surrogateescape", "utf-16-le": "surrogatepass", "utf-16-be": "surrogatepass"}
_ENDINGS = tuple(f".{ending}" for ending in AUDIO_ENDINGS)
# SpeechBrain's recordings of several channels, and Lhotse's recordings with sources of these types.
_FILES, _SOURCE, _SOURCE_TYPES = "files", "source", ("file", "url")
_SPACE, _STRING = re.compile(r"[\ufeff \t\r\n]*"), re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Reference(NamedTuple):
    """A reference to a recording in a manifest: row (for messages), column or key, and position of the value.

    The value with its quotes is from `start` to before `end` in the text.
    """

    place: str
    column: str
    start: int
    end: int
    path: str


@dataclass(frozen=True)
class NamedPaths:
    """A manifest, and its references to recordings in the order of its text."""

    text: str
    encoding: str
    is_table: bool
    references: tuple[Reference, ...]

    def with_paths(self, paths: Mapping[str, str]) -> bytes:
        """Returns the manifest with recordings replaced by `paths`."""
        parts, position = [], 0
        for reference in self.references:
            parts += [self.text[position : reference.start], self._written(reference, paths[reference.path])]
            position = reference.end
        return "".join((*parts, self.text[position:])).encode(self.encoding, _ERRORS[self.encoding])

    def _written(self, reference: Reference, path: str) -> str:
        if not self.is_table:
            return json.dumps(path)
        before = self.text[reference.start : reference.end]
        is_quoted = before.startswith('"') or any(each in path for each in (*_DELIMITERS, '"'))
        return '"{}"'.format(path.replace('"', '""')) if is_quoted else path


def read_paths(name: str, content: bytes) -> NamedPaths:
    """Finds the recordings in a CSV, TSV, JSON or JSON lines file; finds none in a file that is not a manifest.

    Recordings are the values of columns and keys whose name is in AUDIO_COLUMNS or ends with `_wav`, if some value has
    a recording's extension. JSON may be lines, a list of rows, SpeechBrain's object of utterances, or Lhotse's cuts.
    The file's extension determines its format; its encoding is UTF-16 with a BOM, or compatible with ASCII.
    """
    encoding = next((each for mark, each in _ENCODINGS.items() if content.startswith(mark)), "utf-8")
    text = content.decode(encoding, _ERRORS[encoding])
    suffix = PurePosixPath(name).suffix.lower()
    is_table = suffix in TABLES
    found = list(_in_table(text, "\t" if suffix == ".tsv" else None) if is_table else _in_json(text))
    of_recordings = {each.column for each in found if _ends_as_recording(each.path)}
    kept = (each for each in found if each.column in of_recordings and each.path.strip())
    return NamedPaths(text, encoding, is_table, tuple(kept))


def _ends_as_recording(path: str) -> bool:
    # A text after `?` is part of a file's name, but the query of a URL.
    return any(text.lower().endswith(_ENDINGS) for text in (path, path.partition("?")[0]))


def _names_recordings(column: str) -> bool:
    name = column.strip().casefold()
    return name in AUDIO_COLUMNS or name.endswith("_wav")


class _Field(NamedTuple):
    """A field of a table: its position without surrounding spaces, and its value without quotes."""

    start: int
    end: int
    value: str


def _in_table(text: str, delimiter: str | None) -> Iterator[Reference]:
    for each in (delimiter,) if delimiter is not None else _DELIMITERS:
        rows = _rows(text, each)
        _, header = next(rows, (0, []))
        names = [field.value.removeprefix(_BOM).strip(' "') for field in header]
        columns = [(number, name) for number, name in enumerate(names) if _names_recordings(name)]
        if columns:
            break
    else:
        return
    for line, fields in rows:
        for number, name in columns:
            if number < len(fields):
                yield Reference(f"line {line}", name, *fields[number])


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[_Field]]]:
    """Yields the rows of a table that are not empty, each with the number of its first line."""
    # TSV has no quoted fields, since a transcript may begin with a quote.
    quoted = rf' *"[^"]*(?:""[^"]*)*" *(?=[{re.escape(delimiter)}\r\n]|\Z)|' if delimiter != "\t" else ""
    pattern = re.compile(rf"({quoted}[^{re.escape(delimiter)}\r\n]*)({re.escape(delimiter)}|\r\n|\r|\n|\Z)")
    fields: list[_Field] = []
    position, line, begins = 0, 1, 1
    while (found := pattern.match(text, position)) is not None:
        fields.append(_field(found[1], position))
        line += max(found[0].count("\n"), found[0].count("\r"))
        position = found.end()
        if found[2] == delimiter:
            continue
        if any(field.value for field in fields):
            yield begins, fields
        fields, begins = [], line
        if position >= len(text):
            return


def _field(raw: str, position: int) -> _Field:
    inner = raw.strip(" ")
    start = position + raw.find(inner) if inner else position
    is_quoted = len(inner) > 1 and inner[0] == inner[-1] == '"'
    return _Field(start, start + len(inner), inner[1:-1].replace('""', '"') if is_quoted else inner)


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object in the order of the text; two may have the same key."""


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_Members)


def _in_json(text: str) -> Iterator[Reference]:
    values, position = [], 0
    try:
        while (start := _behind_space(text, position)) < len(text):
            value, position = _DECODER.raw_decode(text, start)
            if not isinstance(value, list):
                return
            values.append((value, start))
    except ValueError:
        return
    # Keys and strings, in the order in which `_in_value` visits them.
    strings = _STRING.finditer(text)
    line, before = 1, 0
    for value, start in values:
        line, before = line + text.count("\n", before, start), start
        yield from _in_value(value, strings, f"line {line}" if len(values) > 1 else "", None)


def _in_value(
    value: list[Any], strings: Iterator[re.Match[str]], place: str, column: str | None
) -> Iterator[Reference]:
    """Yields the recordings in an object or a list; `column` is that of the paths in a list."""
    siblings = dict(value) if isinstance(value, _Members) else None
    for key, child in value if siblings is not None else enumerate(value):
        row, name = place, column
        if siblings is not None:
            next(strings)
            name = str(key) if _is_path(str(key), siblings) else None
        elif not place:
            row = f"row {key + 1}"
        if isinstance(child, _Members) and siblings is not None and not place:
            row = f"utterance {key!r}"
        if isinstance(child, str):
            start, end = next(strings).span()
            if name is not None:
                yield Reference(place or "the object", name, start, end, child)
        elif isinstance(child, list):
            yield from _in_value(child, strings, row, None if isinstance(child, _Members) else name)


def _behind_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position


def _is_path(key: str, siblings: Mapping[str, Any]) -> bool:
    is_source = key == _SOURCE and siblings.get("type") in _SOURCE_TYPES
    return is_source or key == _FILES or _names_recordings(key)
