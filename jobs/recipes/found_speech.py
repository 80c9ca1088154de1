"""Finds recordings and transcripts in a folder, a manifest or a location in another format."""

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_location import FORMATS, MANIFEST, WITH_SPLITS, DataLocation
from trainers.config.parts.data_part import Quoting, is_encoding
from trainers.config.storage_location import StorageOptions, is_remote
from trainers.data.sources.archives.archive_path import archives_in
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import SLICE, SourceSplit, table_of
from trainers.data.sources.formats.common_voice import CLIPS, SPLIT_FILES
from trainers.data.sources.formats.known_formats import read_rows
from trainers.data.sources.formats.librispeech import TRANSCRIPTS
from trainers.data.sources.manifest import TableRules, read_manifest
from trainers.data.sources.manifest_fields import (
    AUDIO_COLUMNS,
    AUDIO_ENDINGS,
    TEXT_COLUMNS,
    UTF_8,
    decode,
    delimited_rows,
    in_utf_8,
    json_objects,
    refuse_missing_header,
    separator_of,
    usual_column,
)
from trainers.errors import ConfigError, DataError

Tell = Callable[[str], None]
ALL = ""
# Words in names of files and folders that indicate a split.
SPLIT_WORDS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("valid", "validation", "val", "dev"),
    "test": ("test", "eval"),
}
MANIFEST_ENDINGS = (".csv", ".tsv", ".jsonl")
SAVED_DATASET = ("dataset_info.json", "dataset_dict.json")
ENDINGS = (*MANIFEST_ENDINGS, ".json")
OTHER_SEPARATORS = ";\t|"
_NO_COLUMN = "\0"
# Other usual names of the speaker column.
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id", "spk_id", "spk", "speakerid", "speaker_name", "user_id")
# Options that replace fields in messages, since there is no recipe yet.
_OPTIONS: Mapping[str, str] = {
    "data.encoding": "--encoding",
    "data.quoting": "--quoting",
    "name it in data.ignore_columns": "name it with --ignore-columns",
    "--set data.use_language_column=false": "--ignore-columns and its name",
}
_LANGUAGE_IN_CLIP = re.compile(r"common_voice_([A-Za-z]{2,3}(?:-[A-Za-z]+)?)_\d+")
# The transcript of a recording is the file next to it with the same name and this suffix.
TEXT = ".txt"
_SUFFIXES = frozenset(f".{ending}" for ending in AUDIO_ENDINGS)


@dataclass(frozen=True)
class Columns:
    """Columns that the user has named; if None, the column is found by its usual names. `ignored` ones are skipped."""

    audio: str | None = None
    text: str | None = None
    speaker: str | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundSplit:
    """Rows of one split, or of all splits.

    Attributes:
        source: The rows, and the reader of their recordings.
        location: Location of the rows for a recipe. None if a recipe needs a new manifest.
        columns: Names of a manifest's columns with recordings and transcripts.
    """

    source: SourceSplit
    location: str | None = None
    columns: tuple[str, str] = ("path", "text")


@dataclass(frozen=True)
class FoundSpeech:
    """Speech that was found at a location.

    Attributes:
        name: Name of the folder or the file.
        kind: Kind of the data, for messages.
        root: Folder or URL of the data.
        table: The manifest that was named; None for a folder or a corpus.
        splits: Rows by train, validation and test, or by ALL if the data does not assign clips to splits.
        language: Language, if the data specifies it.
        notes: Notes for the user.
        encoding: Encoding of texts.
        quoting: Quoting of CSV fields.
        ignored: Columns of manifests that are skipped.
    """

    name: str
    kind: str
    root: str
    splits: Mapping[str, FoundSplit]
    language: str | None = None
    notes: tuple[str, ...] = ()
    table: str | None = None
    encoding: str = UTF_8
    quoting: Quoting = "csv"
    ignored: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The location, for messages."""
        return self.table or self.root


def find_speech(
    given: str, columns: Columns, tell: Tell, encoding: str = UTF_8, quoting: Quoting = "csv"
) -> FoundSpeech:
    """Finds the recordings and transcripts at a location that a user has named.

    Args:
        given: A path or a location.
        columns: Columns of a manifest.
        tell: Called with progress messages.
        encoding: Encoding of its texts.
        quoting: Quoting of CSV fields.

    Raises:
        ConfigError: there is nothing to train on, or more than one data set; the message has the fix.
        DataError: a manifest or a corpus is not valid.
        StorageError: a bucket or a server cannot be read.
    """
    if not is_encoding(encoding):
        raise ConfigError(f"--encoding {encoding}: not a text encoding of Python: use latin-1, cp1250, utf-16, …")
    try:
        found = _find(given, columns, tell, SourceFiles(StorageOptions(), None, encoding, quoting))
    except DataError as error:
        message = str(error)
        for field, option in _OPTIONS.items():
            message = message.replace(field, option)
        raise type(error)(message) from None
    return replace(found, encoding=encoding, quoting=quoting, ignored=columns.ignored)


def _find(given: str, columns: Columns, tell: Tell, files: SourceFiles) -> FoundSpeech:
    try:
        where = DataLocation.parse(given)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    path = where.path if is_remote(where.path) else posixpath.normpath(Path(where.path).expanduser().absolute())
    name = re.sub(r"\.(tar|gz|tgz|csv|tsv|jsonl|json)\b", "", path.rstrip("/").rpartition("/")[2])
    if where.format != MANIFEST:
        return _of_format(name, replace(where, path=path), files)
    if Path(path).is_dir():
        return _in_folder(Path(path), files, columns, tell)
    if is_remote(path) or Path(path).is_file() or any(True for _ in archives_in(path)):
        found = _manifest(path, files, columns)
        return FoundSpeech(name, "a manifest", path.rpartition("/")[0], {ALL: found}, table=path)
    raise ConfigError(
        f"{given}: no such file or folder: name a folder of recordings, a manifest (.csv, .tsv, .jsonl) or FORMAT:PATH "
        f"({', '.join(FORMATS)})"
    )


def _in_folder(folder: Path, files: SourceFiles, columns: Columns, tell: Tell) -> FoundSpeech:
    named = [each for each in sorted(folder.iterdir()) if not each.name.startswith(".")]
    found = _common_voice(folder, named, files) or _kaldi(folder, named, files)
    if found is not None:
        return found
    if saved := next((each for each in named if each.name in SAVED_DATASET), None):
        raise ConfigError(
            f"{saved}: a data set saved by `datasets`: copy a recipe (rayscribe recipes fleurs > my.yaml) "
            f"and set data.dataset.name: {folder}"
        )
    if manifests := _manifests(folder, named, files, columns):
        return manifests
    below = list_folder(folder, tell)
    if any(name.endswith(TRANSCRIPTS) for name in below):
        where = DataLocation("librispeech", str(folder))
        found = _of_format(folder.name, where, files)
        return replace(found, splits=_by_folders(found.splits[ALL], str(folder), files))
    return _recordings(folder, below, files)


def _of_format(name: str, where: DataLocation, files: SourceFiles) -> FoundSpeech:
    query = "&".join(f"{name}={value}" for name, value in where.options.items())
    text = f"{where.format}:{where.path}" + (f"?{query}" if query else "")
    has_splits = where.format in WITH_SPLITS and "split" not in where.options
    splits, notes = {}, list[str]()
    for split in SPLIT_WORDS if has_splits else (ALL,):
        rows = read_rows(where, split or "train", files)
        table = rows.table.filter(pc.invert(pc.is_in(rows.table["id"], pa.array([*rows.problems], pa.string()))))
        splits[split] = FoundSplit(_open_rows(split, rows.location, table, files), text)
        notes += rows.warnings
        if rows.problems:
            notes.append(f"left out, samples without one recording and one text: {len(rows.problems)}")
    table = next(iter(splits.values())).source.table
    language = None
    if where.format == "common_voice" and len(table):
        clip = _LANGUAGE_IN_CLIP.match(table["id"][0].as_py())
        language = clip[1].lower() if clip is not None else None
    return FoundSpeech(name, where.format, where.path, splits, language, tuple(notes))


def _common_voice(folder: Path, named: Sequence[Path], files: SourceFiles) -> FoundSpeech | None:
    tables = [f"{name}.tsv" for name in SPLIT_FILES.values()]
    wanted = [("validated.tsv",), tuple(tables)]
    found = [
        each
        for each in (folder, *named)
        if (each / CLIPS).is_dir() and any(all((each / name).is_file() for name in names) for names in wanted)
    ]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"{folder}: several languages of Common Voice ({names}): name one's folder, e.g. {found[0]}")
    if not found:
        return None
    has_splits = all((found[0] / name).is_file() for name in tables)
    options = {} if has_splits else {"split": "validated"}
    speech = _of_format(found[0].name, DataLocation("common_voice", str(found[0]), options), files)
    return replace(speech, kind="Common Voice")


def _kaldi(folder: Path, named: Sequence[Path], files: SourceFiles) -> FoundSpeech | None:
    if (folder / "wav.scp").is_file():
        return replace(_of_format(folder.name, DataLocation("kaldi", str(folder)), files), kind="Kaldi's data folder")
    by_split = _named_splits([each for each in named if (each / "wav.scp").is_file()])
    if "train" not in by_split:
        return None
    splits = {
        split: _of_format(each.name, DataLocation("kaldi", str(each)), files).splits[ALL]
        for split, each in by_split.items()
    }
    return FoundSpeech(folder.name, "Kaldi's data folders", str(folder), splits)


def _manifests(folder: Path, named: Sequence[Path], files: SourceFiles, columns: Columns) -> FoundSpeech | None:
    """Returns a folder's manifests: one per split (there or in subfolders, as metadata), or a single one; or None."""
    here = [each for each in named if each.suffix.lower() in MANIFEST_ENDINGS and each.is_file()]
    below = [each / f"metadata{end}" for each in named if each.is_dir() for end in MANIFEST_ENDINGS]
    for paths in (here, [each for each in below if each.is_file()]):
        by_split = _named_splits(paths, of_parents=paths is not here)
        if "train" in by_split:
            splits = {split: _manifest(str(path), files, columns) for split, path in by_split.items()}
            return FoundSpeech(folder.name, "manifests of its splits", str(folder), splits)
    if len(here) > 1:
        metadata = [each for each in here if each.stem == "metadata"]
        if len(metadata) != 1:
            names = ", ".join(each.name for each in here)
            raise ConfigError(f"{folder}: several manifests ({names}): name one, e.g. {here[0]}")
        here = metadata
    if not here:
        return None
    return FoundSpeech(folder.name, here[0].name, str(folder), {ALL: _manifest(str(here[0]), files, columns)})


def _named_splits(paths: Sequence[Path], *, of_parents: bool = False) -> dict[str, Path]:
    """Returns files or folders by the split in their names; names without a split are left out.

    Raises:
        ConfigError: two paths are for the same split.
    """
    found: dict[str, Path] = {}
    for path in paths:
        split = split_of_name(path.parent.name if of_parents else path.stem)
        if split is not None and found.setdefault(split, path) != path:
            raise ConfigError(
                f"{path.parent}: {found[split].name} and {path.name} are both for {split}: name one of them"
            )
    return {split: found[split] for split in SPLIT_WORDS if split in found}


def split_of_name(name: str) -> str | None:
    """Returns the split in a name, e.g. train for `train-clean-100`; None without one."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((split for split, known in SPLIT_WORDS.items() if any(word in known for word in words)), None)


def _manifest(location: str, files: SourceFiles, columns: Columns) -> FoundSplit:
    """Reads the rows of a manifest, with any names of columns and any separator.

    Raises:
        ConfigError: there is no manifest, or its columns are not known.
        DataError: the manifest is not valid.
    """
    if posixpath.splitext(location)[1].lower() not in ENDINGS:
        raise ConfigError(
            f"{location}: its extension is not that of a manifest ({', '.join(ENDINGS)}): name a manifest, a folder "
            "of recordings, or FORMAT:PATH (docs/data.md)"
        )
    content = files.read(location)
    if content is None:
        raise ConfigError(f"{location}: no such file: name a manifest (.csv, .tsv, .jsonl) or a folder of recordings")
    names, separator = _columns_of(location, decode(location, content), files.quoting)
    if not names:
        raise DataError(f"{location}: it has no rows: write a header and a line for each recording")
    names = [name for name in names if name not in columns.ignored]
    audio = columns.audio or usual_column(names, AUDIO_COLUMNS)
    transcript = columns.text or usual_column(names, TEXT_COLUMNS)
    if audio not in names:
        refuse_missing_header(location, names)
    speaker = columns.speaker or usual_column(names, SPEAKER_COLUMNS)
    _refuse_unknown(location, names, Columns(audio, transcript, speaker))
    assert audio is not None and transcript is not None
    rules = TableRules(
        audio, transcript, slice_columns=[] if speaker is None else [speaker], ignore_columns=columns.ignored
    )
    table = read_manifest(location, content, rules, quoting=files.quoting, delimiter=separator)
    if speaker is not None:
        place = table.schema.get_field_index("speaker")
        table = table.set_column(place, "speaker", table[f"{SLICE}{speaker}"]).drop_columns(f"{SLICE}{speaker}")
    # A recipe can name a manifest with commas or tabs unchanged.
    named = location if separator in (None, ",") else None
    return FoundSplit(_open_rows("", location, table, files), named, (audio, transcript))


def _refuse_unknown(location: str, names: Sequence[str], columns: Columns) -> None:
    no_texts = " (if none does, add a column text with the transcripts, without which there is nothing to train on)"
    wanted = [
        ("--audio-column", columns.audio, "recordings", ""),
        ("--text-column", columns.text, "transcripts", no_texts),
        *([("--speaker-column", columns.speaker, "speakers", "")] if columns.speaker is not None else []),
    ]
    problems = [
        f"{f'none is {name!r}:' if name is not None else f'which one names the {what}?'} name it with {option}{more}"
        for option, name, what, more in wanted
        if name not in names
    ]
    if problems:
        raise ConfigError(f"{location}: of its columns ({', '.join(names)}) {'; '.join(problems)}")


def _open_rows(split: str, location: str, table: pa.Table, files: SourceFiles) -> SourceSplit:
    """Returns rows with a reader of their recordings; without a fingerprint, which only prepared data needs."""
    rows = files.locate(table, {})
    return SourceSplit(split, location, rows.table, rows.reader, fingerprint="")


def _columns_of(location: str, text: str, quoting: Quoting) -> tuple[Sequence[str], str | None]:
    suffix = posixpath.splitext(location)[1].lower()
    if suffix not in (".csv", ".tsv"):
        # An object may lack keys that others have, e.g. if its speaker is unknown.
        return [*dict.fromkeys(name for _, row in json_objects(location, text) for name in row)], None
    separator = separator_of(text, OTHER_SEPARATORS) if suffix == ".csv" else None
    return [*delimited_rows(location, text, separator or "\t", [_NO_COLUMN], quoting=quoting)[0]], separator


def _recordings(folder: Path, below: list[str], files: SourceFiles) -> FoundSpeech:
    table, notes = rows_next_to_recordings(folder, below, files.encoding)
    found = FoundSplit(_open_rows(ALL, str(folder), table, files))
    splits = _by_folders(found, str(folder), files)
    return FoundSpeech(folder.name, "recordings with a .txt next to each", str(folder), splits, notes=tuple(notes))


def _by_folders(found: FoundSplit, root: str, files: SourceFiles) -> dict[str, FoundSplit]:
    """Groups recordings by splits in folder names below `root`; under ALL if some have none, or train has none."""
    table = found.source.table
    folders = [Path(audio).relative_to(root).parts[:-1] for audio in table["audio"].to_pylist()]
    splits = [next(filter(None, map(split_of_name, parts)), None) for parts in folders]
    if None in splits or "train" not in splits or len(set(splits)) == 1:
        return {ALL: found}
    chosen = pa.array(splits, pa.string())
    return {
        split: FoundSplit(_open_rows(split, root, table.filter(pc.equal(chosen, split)), files))
        for split in SPLIT_WORDS
        if split in splits
    }


def list_folder(folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Lists all files below a folder except hidden ones, as sorted relative paths.

    Raises:
        DataError: a folder cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}: let this user read it") from None

    found: list[str] = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(root, folder)
        prefix = "" if below == "." else f"{below}/"
        found += [f"{prefix}{name}" for name in names if not name.startswith(".")]
        tell(f"{folder}: {len(found):,} files so far")
    return sorted(found)


def rows_next_to_recordings(folder: Path, files: list[str], encoding: str) -> tuple[pa.Table, list[str]]:
    """Returns the recordings with a transcript, as a table of ROW_SCHEMA, and notes on those left out.

    Raises:
        ConfigError: there are no recordings, or no transcripts; the message has the fix.
        DataError: a transcript is in another encoding.
    """
    recordings = [name for name in files if posixpath.splitext(name)[1].lower() in _SUFFIXES]
    names = frozenset(files)
    if not recordings:
        raise ConfigError(
            f"{folder}: no recordings (.wav, .flac, .mp3, …) and no manifest in it or below: name a folder of "
            "recordings, or a manifest (.csv, .tsv, .jsonl)"
        )
    with_text = [name for name in recordings if _text_of(name) in names]
    if not with_text:
        first = Path(recordings[0])
        raise ConfigError(
            f"{folder}: recordings ({len(recordings):,}), but no transcripts, which training needs: write the "
            f"transcript of {first} to {first.with_suffix(TEXT)} and so on, or write a manifest {folder}/all.csv "
            "with the columns path,text and a line for each recording"
        )
    rows = [row for row in _rows(folder, with_text, encoding) if row["text"]]
    empty = len(with_text) - len(rows)
    without = len(recordings) - len(with_text)
    notes = [f"left out, recordings without a .txt: {without:,}"] if without else []
    notes += [f"left out, recordings with an empty .txt: {empty:,}"] if empty else []
    if not rows:
        raise ConfigError(f"{folder}: each .txt is empty: write to each the transcript of its recording")
    return table_of(rows), notes


def _text_of(recording: str) -> str:
    return posixpath.splitext(recording)[0] + TEXT


def _rows(folder: Path, recordings: list[str], encoding: str) -> Iterator[dict[str, str]]:
    for name in recordings:
        path = folder / _text_of(name)
        try:
            text = decode(str(path), in_utf_8(str(path), path.read_bytes(), encoding))
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}: let this user read it") from None
        yield {"id": name, "audio": str(folder / name), "text": " ".join(text.split())}
