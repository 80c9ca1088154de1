"""The table of formats: what opens the rows of a `DataLocation`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from trainers.config.parts.data_location import DataLocation
from trainers.data.sources.formats.common_voice import SPLIT_FILES, CommonVoice, Counts, Read, Rules
from trainers.data.sources.formats.kaldi import read_kaldi
from trainers.data.sources.formats.speechbrain import read_speechbrain
from trainers.errors import ConfigError, DataError


@dataclass(frozen=True)
class Rows:
    """Rows that were read.

    Attributes:
        location: The file that stands for all in messages; recordings in a bucket lie below its folder.
        contents: The bytes of all files that decide what the rows are.
        table: Of ROW_SCHEMA.
        warnings: What a user should know of them.
    """

    location: str
    contents: Sequence[bytes]
    table: pa.Table
    warnings: Sequence[str] = ()


def read_rows(where: DataLocation, split: str, read: Read) -> Rows:
    """Reads the rows of a location in one of the formats.

    `read` gives a file below it by name, None where there is none; and by "" the location itself where it is a file.

    Raises:
        ConfigError: an option has a wrong value.
        DataError: a file is missing or wrong, or there are no rows.
    """
    rows = _READERS[where.format](where, split, read)
    if not len(rows.table):
        raise DataError(f"{rows.location}: no rows are left: name other splits of it")
    return rows


def _common_voice(where: DataLocation, split: str, read: Read) -> Rows:
    tables = [SPLIT_FILES.get(name, name) for name in where.options.get("split", split).split("+")]
    counts, corpus = Counts(), CommonVoice.in_folder(where.path, read)
    rules = Rules(accented_letters=_truth(where, "accented_letters", default=True))
    table = corpus.rows(corpus.clips(tables, rules, counts))
    location = f"{corpus.folder}/{tables[0]}.tsv"
    return Rows(location, list(corpus.contents.values()), table, [f"{location}: {line}" for line in counts.lines()])


def _truth(where: DataLocation, option: str, *, default: bool) -> bool:
    value = where.options.get(option, str(default).lower())
    if value not in ("true", "false"):
        raise ConfigError(f"{where.format}:{where.path}: {option} is {value!r}: give true or false")
    return value == "true"


def _kaldi(where: DataLocation, split: str, read: Read) -> Rows:
    table, content = read_kaldi(where.path, read)
    return Rows(f"{where.path.rstrip('/')}/wav.scp", [content], table)


def _speechbrain(where: DataLocation, split: str, read: Read) -> Rows:
    content = read("")
    if content is None:
        raise DataError(f"{where.path}: no such file: name SpeechBrain's .json or .csv of a split")
    table = read_speechbrain(where.path, content, data_root=where.options.get("data_root"))
    return Rows(where.path, [content], table)


_READERS: Mapping[str, Callable[[DataLocation, str, Read], Rows]] = {
    "common_voice": _common_voice,
    "kaldi": _kaldi,
    "speechbrain": _speechbrain,
}
