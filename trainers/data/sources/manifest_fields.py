"""Functions shared by manifests of all formats: encodings, delimited rows, refused columns, values of fields."""

import codecs
import csv
import io
import math
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import Quoting
from trainers.config.strict_loading import load_json, load_json_list
from trainers.errors import DataError

_MAX_NAMED = 5
UTF_8 = "utf-8"
# Magic bytes of compressed files, with their format and what to do.
_COMPRESSED = {
    rb"\x1f\x8b": "is compressed (gzip): unpack it with gunzip",
    rb"BZh[1-9]1AY&SY": "is compressed (bzip2): unpack it with bunzip2",
    rb"\xfd7zXZ\x00": "is compressed (xz): unpack it with unxz",
    rb"\x28\xb5\x2f\xfd": "is compressed (zstd): unpack it with unzstd",
    rb"PK\x03\x04": "is a zip, as spreadsheets are (.xlsx): unpack it, or save it as CSV",
}

# Names of the column of recordings in Hugging Face, NeMo, Common Voice, SpeechBrain and DeepSpeech.
AUDIO_COLUMNS = ("path", "audio", "audio_filepath", "file", "file_name", "wav", "wav_filename")
# Names of the column of transcripts in these.
TEXT_COLUMNS = ("text", "sentence", "transcript", "transcription", "wrd", "normalized_text")
# Recording extensions; case is ignored.
_LOSSLESS = ("aif", "aifc", "aiff", "au", "caf", "flac", "sph", "wav")
AUDIO_ENDINGS = (*_LOSSLESS, "aac", "amr", "m4a", "mka", "mp3", "mp4", "oga", "ogg", "opus", "webm", "wma")
# Placeholder for the corpus's folder in SpeechBrain's manifests, with the slashes after it.
DATA_ROOT = re.compile(r"(?:\$\{data_root\}|\$data_root\b|\{data_root\})(/*)")

# Columns that select a part of a recording in other ways; they are refused, since they are not read.
_GAP = r"[\s_.()\[\]-]*"
_OF = f"((audio|clip|file|recording|seg|segment|speech|t|time|timestamp|utt|utterance|wav){_GAP})?"
_UNIT = f"({_GAP}(s|ms|secs?|seconds?|millis|milliseconds?|samples?|frames?))?{_GAP}"
_BOUNDS = "offset|onset|start|begin|stop|end|[tx]min|[tx]max"
_CHANNEL = re.compile(rf"{_OF}channel({_GAP}(selector|id|index|number))?", re.IGNORECASE)
_BOUND = re.compile(rf"{_OF}({_BOUNDS})({_GAP}(times?|timestamp))?{_UNIT}", re.IGNORECASE)
_LENGTH = re.compile(rf"{_OF}(dur|duration|length|len){_UNIT}", re.IGNORECASE)
# Unpaired surrogates and NULs, which neither a file nor a table can store.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

# Excel's first line of a .csv, which declares the delimiter.
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_DIGITS = re.compile(r"\d+")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_RECORDING = "a recording"
_UNQUOTED = "if the file has no quotes around fields, set data.quoting to none"

# One row: the line on which it ends, or its name, and its values in the requested columns, "" for missing ones.
Row = tuple[int | str, Sequence[str]]

# A field may be as long as in JSON; Python's limit of 131,072 characters is meant for streaming readers.
csv.field_size_limit(2**31 - 1)


def in_utf_8(location: str, content: bytes, encoding: str) -> bytes:
    """Converts a text in another encoding to UTF-8; returns text in UTF-8, valid or not, and compressed data unchanged.

    Raises DataError, which names byte and line, for a text that is not in this encoding.
    """
    if codecs.lookup(encoding).name == UTF_8 or _compression_of(content):
        return content
    try:
        return content.decode(encoding).encode()
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        line = content.count(b"\n", 0, start) + 1
        raise DataError(
            f"{location}: byte {start} (line {line}) is not {encoding}: correct data.encoding, or save it as UTF-8"
        ) from None


def misread_texts(texts: Iterable[str], encoding: str) -> list[tuple[str, str]]:
    """Returns UTF-8 texts that were read in a single-byte encoding, such as `Ä‡` for `ć`; each with the right text."""
    if codecs.lookup(encoding).name.startswith("utf") or len(bytes(range(256)).decode(encoding, "replace")) != 256:
        return []
    found = []
    for text in texts:
        # Bytes of a text in another encoding are hardly ever valid UTF-8.
        with suppress(UnicodeError):
            if not text.isascii() and not (meant := text.encode(encoding).decode()).isascii():
                found.append((text, meant))
    return found


def decode(location: str, content: bytes) -> str:
    """Returns the text of a file in UTF-8, with or without a byte order mark.

    Raises DataError if the file is compressed, or (with byte and line) has NUL bytes or is not UTF-8.
    """
    if compression := _compression_of(content):
        raise DataError(f"{location}: {compression}")
    try:
        text, wrong = content.decode("utf-8-sig"), content.find(b"\0")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong < 0:
        return text
    line = content.count(b"\n", 0, wrong) + 1
    # UTF-16 without a byte order mark, and blocks lost by a disk, have NUL bytes, which are valid UTF-8.
    what = "is not UTF-8" if content[wrong] else "is NUL, which no text has"
    meant = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "what it is"
    raise DataError(f"{location}: byte {wrong} (line {line}) {what}: save it as UTF-8, or set data.encoding to {meant}")


def _compression_of(content: bytes) -> str:
    """Returns the format of a compressed file and what to do; "" for other files."""
    return next((what for start, what in _COMPRESSED.items() if re.match(start, content)), "")


def separator_of(text: str, others: str = ";") -> str:
    """Returns the delimiter of a .csv; spreadsheets write semicolons if the decimal mark is a comma.

    Excel's first line `sep=;` is used; `others` are possible delimiters in a header without a comma.
    """
    header = _first_line(text)
    if declared := _SEPARATOR_LINE.fullmatch(header):
        return declared[1]
    return next((each for each in others if each in header and "," not in header), ",")


def _first_line(text: str) -> str:
    return _LINE_END.split(text.lstrip(), maxsplit=1)[0].rstrip(" ")


def content_as_read(location: str, content: bytes, quoting: Quoting) -> bytes:
    """Returns bytes that determine the rows of a file: its content and, for a .csv, whether quotes are kept."""
    depends = quoting == "none" and location.lower().endswith(".csv") and b'"' in content
    return content + b"\0quoting: none" if depends else content


def delimited_rows(
    location: str,
    text: str,
    delimiter: str,
    wanted: Sequence[str],
    *,
    quoting: Quoting = "csv",
    skip_spaces: bool = False,
    unquoted: str = _UNQUOTED,
) -> tuple[Sequence[str], Iterator[Row]]:
    """Returns the columns of CSV or TSV with a header, and an iterator of its rows.

    Args:
        location: The file in messages; a .tsv has no quoting.
        text: Its content.
        delimiter: Delimiter of the columns.
        wanted: Columns whose values are returned, in this order; the first identifies rows, such as their recordings.
        quoting: "csv" if quotes enclose fields, "none" if they are part of them.
        skip_spaces: True if spaces after a comma are ignored.
        unquoted: The fix for a file without quotes around its fields.

    Raises:
        DataError: A wanted column occurs twice; or, in iteration, a line has more or fewer fields than the header, or a
            quote is not closed, or is closed by a quote of another row.
    """
    file = io.StringIO(text, newline="")
    if quoting == "none" or location.lower().endswith(".tsv"):
        reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(file, delimiter=delimiter, strict=True, skipinitialspace=skip_spaces)
    lines = filter(None, reader)
    try:
        if _SEPARATOR_LINE.fullmatch(_first_line(text)):
            next(lines)
        header = [name.strip() for name in next(lines, [])]
    except csv.Error as error:
        raise DataError(f"{location}: line 1: {error}: quote the column names as CSV requires") from None
    refuse_repeated(location, header, wanted)
    return header, _checked_rows(location, reader, delimiter, header, wanted, unquoted)


def refuse_repeated(location: str, columns: Sequence[str], wanted: Iterable[str]) -> None:
    """Raises DataError if a wanted column occurs twice."""
    if (name := next((name for name in wanted if columns.count(name) > 1), None)) is not None:
        raise DataError(f"{location}: the column {name!r} is listed twice: rename one of them")


def _checked_rows(
    location: str, reader: Any, delimiter: str, header: Sequence[str], wanted: Sequence[str], unquoted: str
) -> Iterator[Row]:
    """Yields the rows below a header, from a reader of Python's `csv`; raises as `delimited_rows`."""
    width, before = len(header), reader.line_num
    places = [header.index(name) if name in header else width for name in wanted]
    pick = itemgetter(*places)
    try:
        for fields in reader:
            if reader.line_num > before + 1:
                _refuse_swallowed_rows(location, fields, places[0], delimiter, before + 1, unquoted)
            before = reader.line_num
            if len(fields) != width:
                if not fields:
                    continue
                fix = "take tabs out of the fields" if delimiter == "\t" else f"quote a field with {delimiter!r}"
                line = f"line {reader.line_num} has {len(fields)} fields where the header has {width}"
                raise DataError(f"{location}: {line}: {fix}")
            fields.append("")  # For columns that do not exist.
            yield reader.line_num, pick(fields)
    except csv.Error as error:
        line = f"line {before + 1}" + (f" to {reader.line_num}" if reader.line_num > before + 1 else "")
        fix = "close every quote, and double quotes inside quotes"
        raise DataError(f"{location}: {line}: {error}: {fix}; {unquoted}") from None


def _refuse_swallowed_rows(
    location: str, fields: Sequence[str], column: int, delimiter: str, line: int, fix: str
) -> None:
    """Raises DataError for a field with lines that look like rows, which stray quotes in two rows then enclose.

    The row begins at `line`; its field `column` names its recording.
    """
    own = fields[column].strip() if column < len(fields) else ""
    for number, field in enumerate(fields):
        within = _LINE_END.split(field)
        for each, text in enumerate(within if own and len(within) > 1 else ()):
            # Other fields of its row precede its first line, and others follow its last.
            before, behind = 0 if each else number, 0 if each < len(within) - 1 else len(fields) - number - 1
            place, values = column - before, text.split(delimiter)
            is_complete = before + len(values) + behind == len(fields)
            if len(values) > 1 and 0 <= place < len(values) and _is_row(values, place, own, is_complete=is_complete):
                raise DataError(
                    f"{location}: the quote that opens in line {line} closes in line {line + len(within) - 1}, and "
                    f"what is between them looks like rows: double quotes inside quotes; {fix}"
                )
        line += len(within) - 1


def _is_row(values: Sequence[str], place: int, own: str, *, is_complete: bool) -> bool:
    """Returns True if values look like a row, in a table in which `own` is another row's recording."""
    name = values[place].strip()
    if _shape(name) in (_shape(own), _RECORDING):
        return True
    # Names without an extension have in common only that they are not prose, which has spaces after its commas.
    is_prose = any(value.startswith(" ") for value in values) or " " in name
    return is_complete and not _ending(own) and not is_prose and 2 * len(name) >= len(own)


def _shape(name: str) -> str:
    """Returns what names of recordings have in common: their extension; for other names, all but numbers."""
    ending = _ending(name)
    return _RECORDING if ending in AUDIO_ENDINGS else _DIGITS.sub("0", ending or name)


def _ending(name: str) -> str:
    """Returns the extension in a file name, or in a URL without its query; "" if the text is not a file name."""
    ending = posixpath.splitext(_QUERY.sub("", name))[1].lower().removeprefix(".")
    return ending if ending.isalnum() and not ending.isdigit() else ""


def json_rows(location: str, text: str, wanted: Sequence[str]) -> tuple[Collection[str], Iterator[Row]]:
    """Returns the keys of JSON lines, and their rows; the first two wanted values must be strings.

    Raises DataError if a line is not a JSON object, or a value is wrong.
    """
    keys: dict[str, None] = {}
    rows: list[Row] = []
    for line, record in json_objects(location, text):
        keys |= dict.fromkeys(record)
        try:
            rows.append((line, text_values(record, wanted, wanted[:2])))
        except ValueError as error:
            raise DataError(f"{location}: line {line}: {error}") from None
    return keys, iter(rows)


def json_objects(location: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of JSON lines, or of the list in a .json, each with its line, from 1.

    Raises DataError if a line is not a JSON object.
    """
    is_list = location.lower().endswith(".json") and text.lstrip().startswith("[")
    for line, record in _json_list(location, text) if is_list else _json_lines(location, text):
        if not isinstance(record, dict):
            raise DataError(f"{location}: line {line} is not a JSON object: write one object for each row")
        yield line, record


def _json_list(location: str, text: str) -> list[tuple[int, Any]]:
    try:
        return load_json_list(text)
    except ValueError as error:
        raise DataError(f"{location}: it is not a list in JSON ({error}): write one object for each row") from None


def _json_lines(location: str, text: str) -> Iterator[tuple[int, Any]]:
    for line, record in enumerate(text.split("\n"), start=1):
        try:
            if record.strip():
                yield line, load_json(record)
        except ValueError as error:
            raise DataError(f"{location}: line {line} is not JSON ({error}): write one object a line") from None


def usual_column(columns: Iterable[str], usual: Iterable[str]) -> str | None:
    """Returns the column with the first of the usual names, ignoring case, spaces, dashes and underscores."""
    by_folded = {_folded_name(name): name for name in reversed([*columns])}
    return next((by_folded[name] for name in map(_folded_name, usual) if name in by_folded), None)


def _folded_name(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


def refuse_missing_header(location: str, columns: Collection[str]) -> None:
    """Raises DataError for a table whose first line names a recording, so it is not a header."""
    endings = [posixpath.splitext(name.strip())[1].lower().removeprefix(".") for name in columns]
    if location.lower().endswith((".csv", ".tsv")) and not set(endings).isdisjoint(AUDIO_ENDINGS):
        raise DataError(f"{location}: its first line ({', '.join(columns)}) is not a header: add one, e.g. path,text")


def refuse_unread(
    location: str, columns: Collection[str], read: Collection[str | None], fix_else: str = "take the column out"
) -> None:
    """Raises DataError for further columns which show that a row is a part of its recording."""
    of_segments = [_BOUND, _LENGTH] if "offset" in columns and "duration" not in columns else [_BOUND]
    for name in dict.fromkeys(columns):
        if name in ("offset", *read):
            continue
        if _CHANNEL.fullmatch(name.strip()):
            fix = "store each channel as a recording of its own"
        elif any(pattern.fullmatch(name.strip()) for pattern in of_segments):
            fix = "give segments as 'offset' and 'duration', in seconds"
        else:
            continue
        raise DataError(
            f"{location}: the column {name!r} says which part of a recording is meant, and is not read: {fix}, "
            f"and {fix_else}"
        )


def text_values(record: Mapping[str, Any], names: Sequence[str], must_be_text: Collection[str]) -> tuple[str, ...]:
    """Returns values of a JSON object in the form of CSV fields; "" for missing ones and null.

    Raises ValueError for a list, an object or a boolean, for a number where text is required, and as `require_text`.
    """
    for name in names:
        value = record.get(name)
        is_wrong = name in must_be_text and not isinstance(value, str | None)
        if is_wrong or isinstance(value, bool | list | dict):
            raise ValueError(f"{name!r} is {value!r}: write it as a string")
    values = tuple("" if (value := record.get(name)) is None else str(value) for name in names)
    require_text(names, values)
    return values


def require_text(names: Sequence[str], values: Sequence[str]) -> None:
    """Raises ValueError for values with characters that JSON can escape, but no table can store."""
    if _NO_TEXT.search("".join(values)):
        name, value = next(each for each in zip(names, values, strict=True) if _NO_TEXT.search(each[1]))
        raise ValueError(f"{name!r} is {value!r}, which is not text: fix it")


def to_seconds(value: str) -> float:
    """Parses a number of seconds, at least 0. Raises ValueError, which names the fix, for any other text."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not a number of seconds: correct it")
    return number


def base_of(location: str) -> tuple[str, str]:
    """Splits the folder of a manifest into scheme and bucket ("s3://bucket", or "") and absolute path."""
    if "://" not in location:
        return "", posixpath.normpath(Path(location).absolute().parent)
    scheme, _, rest = location.partition("://")
    host, _, key = rest.partition("/")
    return f"{scheme}://{host}", posixpath.dirname(f"/{key}")


def absolute(base: tuple[str, str], path: str) -> str:
    """Joins a path to the manifest's folder; absolute paths and URLs are unchanged."""
    if path.startswith("/") or "://" in path:
        return path
    root, folder = base
    joined = f"{folder}/{path}" if folder != "/" else f"/{path}"
    # Object stores take "." and ".." literally.
    return root + (posixpath.normpath(joined) if "./" in path or "//" in path else joined)


def checked_ids(location: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the ids. Raises DataError, with the number and the first of them, if some occur more than once."""
    if pc.count_distinct(ids).as_py() == len(ids):
        return ids
    repeated = [name for name, count in Counter(ids.to_pylist()).items() if count > 1]
    raise DataError(f"{location}: {len(repeated)} ids occur more than once ({examples(repeated)}): make them unique")


def examples(names: Sequence[str]) -> str:
    """Returns the first names of many, for messages."""
    return ", ".join(map(repr, names[:_MAX_NAMED])) + (" and others" if len(names) > _MAX_NAMED else "")
