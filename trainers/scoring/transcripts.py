"""Reads hypotheses and references of any system from files, and scores them like a run's. Loads no heavy library.

- `.txt`: one utterance per line, which may be empty; both files have the same number of lines.
- `.trn` (NIST): the words, then the id in parentheses at the end of the line. Lines that begin with `;;` are comments.
- `.jsonl`, `.json`: an object per line, with `id` and the text; our own evaluation/<split>.jsonl have both
  texts.
- `.csv` (commas or semicolons), `.tsv`: a header with `id` and the names of the text in JSON.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.errors import ConfigError, DataError
from trainers.scoring.error_rate import UtteranceScore, differences, score_utterance

# Keys of the text in a line of JSON or a row of CSV, of which the first one found is used. NeMo writes `pred_text`.
HYPOTHESIS_KEYS = ("hypothesis", "pred_text", "text")
REFERENCE_KEYS = ("reference", "text")
DURATION_KEYS = ("duration_s", "duration")
SUFFIXES = (".txt", ".trn", ".jsonl", ".json", ".csv", ".tsv")

_TRN_LINE = re.compile(r"(?P<text>.*)\((?P<id>[^()]*)\)\s*")
_AS_TSV = "if the file has no quotes around fields, save it with tabs as .tsv"
_TRN_ALTERNATIVES = re.compile(r"\{[^{}]*/[^{}]*\}")


@dataclass(frozen=True)
class Transcripts:
    """The texts of one file, and durations if it has them, by id; without ids, by line number."""

    path: Path
    texts: dict[str, str]
    by_line: bool
    durations_s: dict[str, float]


def read_hypotheses(path: Path) -> Transcripts:
    """Reads the hypotheses of a system; see the module for formats.

    Raises ConfigError if the file cannot be read or its extension is not known, and DataError if a line is not valid.
    """
    return _read(path, HYPOTHESIS_KEYS)


def read_references(path: Path) -> Transcripts:
    """Reads the references; otherwise like `read_hypotheses`."""
    return _read(path, REFERENCE_KEYS)


def score_transcripts(
    hypotheses: Transcripts, references: Transcripts, normalize: Callable[[str], str]
) -> list[UtteranceScore]:
    """Scores each utterance, in the order of the references; raises DataError if lines or ids differ."""
    if hypotheses.by_line != references.by_line:
        numbered, named = (hypotheses, references) if hypotheses.by_line else (references, hypotheses)
        raise DataError(
            f"{numbered.path} goes by line and {named.path} by id: "
            "give two .txt files, or two that have ids (.trn, .jsonl)"
        )
    expected, recognized = references.texts, hypotheses.texts
    if references.by_line and len(expected) != len(recognized):
        raise DataError(
            f"{hypotheses.path} has {len(recognized)} lines and {references.path} has {len(expected)}: a line is an "
            "utterance, and one in which nothing was recognized is an empty line"
        )
    if found := differences([*expected], [*recognized]):
        raise DataError(
            f"the ids of {hypotheses.path} are not the {len(expected)} of {references.path}: {found}. "
            "An utterance in which nothing was recognized has its id and no words"
        )
    durations_s = {**hypotheses.durations_s, **references.durations_s}
    return [score_utterance(id, text, recognized[id], durations_s.get(id), normalize) for id, text in expected.items()]


def _read(path: Path, keys: Sequence[str]) -> Transcripts:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the extension {suffix!r} is not known: name it .txt, .trn, .jsonl or .csv")
    lines = _lines(path)
    if suffix == ".txt":
        rows: Iterator[tuple[str, str, float | None]] = ((str(number), line, None) for number, line in lines)
    elif suffix == ".trn":
        rows = _trn_rows(path, lines)
    else:
        rows = _rows(path, _records(path, "\n".join(line for _, line in lines), suffix), keys)
    texts: dict[str, str] = {}
    durations_s: dict[str, float] = {}
    for id, text, duration_s in rows:
        if id in texts:
            raise DataError(f"{path}: the id {id!r} comes more than once: give each utterance an id of its own")
        texts[id] = text
        if duration_s is not None:
            durations_s[id] = duration_s
    if not texts:
        raise DataError(f"{path}: no utterances: add one line for each")
    return Transcripts(path, texts, suffix == ".txt", durations_s)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Returns the lines with their numbers from 1. Only a line feed ends a line; the last line may lack it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}: name a file that can be read") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}: line {line} is not UTF-8: save the file as UTF-8") from None
    lines = text.split("\n")
    return list(enumerate(lines[:-1] if lines[-1] == "" else lines, start=1))


def _trn_rows(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[tuple[str, str, None]]:
    for number, line in lines:
        if not line.strip() or line.startswith(";;"):
            continue
        match = _TRN_LINE.fullmatch(line)
        if match is None or not match["id"].strip():
            raise DataError(
                f"{path}: line {number} does not end with an id in parentheses: write it as `the words (id)`"
            )
        if _TRN_ALTERNATIVES.search(match["text"]):
            raise DataError(
                f"{path}: line {number} has alternatives {{ a / b }}, which are not supported: keep one of them"
            )
        yield match["id"].strip(), match["text"], None


def _records(path: Path, text: str, suffix: str) -> Iterator[tuple[int | str, Mapping[str, Any]]]:
    # Imported here, since pyarrow takes as long to load as everything else here.
    from trainers.data.sources.manifest_fields import delimited_rows, json_objects, separator_of  # noqa: PLC0415

    if suffix in (".jsonl", ".json"):
        yield from json_objects(str(path), text)
        return
    delimiter = "\t" if suffix == ".tsv" else separator_of(text)
    names = list(dict.fromkeys(("id", *HYPOTHESIS_KEYS, *REFERENCE_KEYS, *DURATION_KEYS)))
    columns, rows = delimited_rows(str(path), text, delimiter, names, unquoted=_AS_TSV)
    for number, values in rows:
        yield number, {name: value for name, value in zip(names, values, strict=True) if name in columns}


def _rows(
    path: Path, records: Iterator[tuple[int | str, Mapping[str, Any]]], keys: Sequence[str]
) -> Iterator[tuple[str, str, float | None]]:
    for number, item in records:
        if not isinstance(item.get("id"), str | int):
            raise DataError(f"{path}: line {number} has no id: write an object with an `id` and the text a line")
        text = next((item[key] for key in keys if key in item), None)
        if not isinstance(text, str):
            raise DataError(f"{path}: line {number} has no text: write it under {' or '.join(map(repr, keys))}")
        duration_s = next((item[key] for key in DURATION_KEYS if isinstance(item.get(key), int | float)), None)
        yield str(item["id"]), text, duration_s
