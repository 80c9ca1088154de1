"""Common Voice as distributed by Mozilla: a folder of one language with a TSV for each split, next to its clips.

Manifests are written from such a folder, or from the archive: train.jsonl, validation.jsonl and test.jsonl.
"""

import posixpath
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainers.config.storage_location import StorageOptions
from trainers.config.wording import counted
from trainers.data.sources.archives.archive_index import PROBLEM
from trainers.data.sources.archives.archive_path import SUFFIXES, is_archive
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import SLICE, table_of
from trainers.data.sources.manifest_fields import Row, decode, delimited_rows, to_seconds
from trainers.distributed.console import ProgressCounter
from trainers.distributed.console.plain_lines import as_lines
from trainers.errors import AudioError, DataError, StorageError
from trainers.storage.json_files import to_jsonl

CLIPS, DURATIONS = "clips", "clip_durations.tsv"
# Mozilla's names of the splits.
SPLIT_FILES = {"train": "train", "validation": "dev", "test": "test"}
# Columns of clip, text and speaker, in releases of all years.
AUDIO, SENTENCE, SPEAKER = "path", "sentence", "client_id"
# Columns with self-reported properties of speakers.
SLICES = ("accents", "accent", "variant", "age", "gender")
# Columns of durations in milliseconds, of which each release has one.
MILLISECONDS = ("duration[ms]", "duration")
# Suffix of clips in the first releases, whose tables leave it out.
EXTENSION = ".mp3"
TABLE = ".tsv"
HELD_OUT = ("validation", "test")
# Keys of a manifest's rows, by the columns of ROW_SCHEMA, if they differ.
WRITTEN = {"audio": "path", "duration_s": "duration"}

# A row of a clip: its columns of ROW_SCHEMA, and slices that have a value.
Clip = Mapping[str, Any]


@dataclass(frozen=True)
class Rules:
    """Rules for the rows of a split.

    Attributes:
        accented_letters: False: accents are removed from Latin letters, the default of SpeechBrain's recipe.
        max_characters: Clips with longer sentences are left out. None: no limit.
    """

    accented_letters: bool = True
    max_characters: int | None = None


@dataclass
class Counts:
    """Numbers of clips of a split: those that are kept, and those that were left out, by reason."""

    kept: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """Yields a line for each reason that has clips."""
        yield from (f"{counted(count, 'clip')} {reason}" for reason, count in self.left_out.items() if count)


@dataclass(frozen=True)
class CommonVoice:
    """A folder of one language, at a path, at a URL or in an archive.

    Attributes:
        folder: Its path or URL.
        files: Reads its files.
        contents: Content of each file that was read, by name.
    """

    folder: str
    files: SourceFiles
    contents: dict[str, bytes] = field(default_factory=dict)

    def clips(self, tables: Sequence[str], rules: Rules, counts: Counts) -> list[Clip]:
        """Returns the clips of tables such as train and other, each once, in their order.

        Raises:
            DataError: a table is missing, or is not one of Common Voice.
        """
        durations_s = self._durations_s()
        found: dict[str, Clip] = {}
        for table in tables:
            for _, (path, sentence, speaker, *slices) in self._rows(table, (AUDIO, SENTENCE), (SPEAKER, *SLICES))[1]:
                file, text = self._file(path), cleaned(sentence, rules)
                if file in found and text not in ("", found[file]["text"]):
                    raise DataError(
                        f"{self.folder}/{table}.tsv: the clip {file} has two sentences, {found[file]['text']!r} and "
                        f"{text!r}: keep the one that is meant"
                    )
                if file in found:
                    counts.left_out["in several of the tables, taken once"] += 1
                elif not text:
                    counts.left_out["without a sentence, left out"] += 1
                elif rules.max_characters is not None and len(text) > rules.max_characters:
                    counts.left_out["with a longer sentence than --max-characters, left out"] += 1
                else:
                    found[file] = {
                        **{f"{SLICE}{name}": value for name, value in zip(SLICES, slices, strict=True) if value},
                        "id": posixpath.splitext(file)[0],
                        "audio": f"{self.folder}/{CLIPS}/{file}",
                        "text": text,
                        "speaker": speaker or None,
                        "duration_s": durations_s.get(file),
                    }
        counts.kept = len(found)
        return list(found.values())

    def _file(self, path: str) -> str:
        if not path or "/" in path or path.startswith("."):
            raise DataError(f"{self.folder}: a table names the clip {path!r}, which is no name of a file in {CLIPS}/")
        return path if posixpath.splitext(path)[1] else path + EXTENSION

    def _durations_s(self) -> dict[str, float]:
        if self._content(DURATIONS) is None:
            return {}
        header, rows = self._rows(DURATIONS.removesuffix(TABLE), ("clip",), MILLISECONDS)
        if not set(MILLISECONDS).intersection(header):
            return {}
        try:
            return {clip: to_seconds(one or other) / 1000 for _, (clip, one, other) in rows}
        except ValueError as error:
            raise DataError(f"{self.folder}/{DURATIONS}: {error}: a duration is a number of milliseconds") from None

    def _rows(self, table: str, required: Sequence[str], others: Sequence[str]) -> tuple[Sequence[str], Iterator[Row]]:
        """Returns the header of a table, and the values of columns in its rows."""
        where, content = f"{self.folder}/{table}{TABLE}", self._content(f"{table}{TABLE}")
        if content is None:
            raise DataError(
                f"{where}: no such table: name the folder of one language of Common Voice, in which {CLIPS}/ lies too"
            )
        header, rows = delimited_rows(where, decode(where, content), "\t", (*required, *others))
        if missing := [column for column in required if column not in header]:
            raise DataError(f"{where}: no column {missing[0]!r} among {', '.join(header)}: is it Common Voice's?")
        return header, rows

    def _content(self, name: str) -> bytes | None:
        if name not in self.contents and (content := self.files.read(f"{self.folder}/{name}")) is not None:
            self.contents[name] = content
        return self.contents.get(name)


def table_of_clips(clips: Sequence[Clip]) -> pa.Table:
    """Returns a table of ROW_SCHEMA and slices."""
    table = table_of(clips)
    for name in (f"{SLICE}{each}" for each in SLICES):
        if any(values := [clip.get(name) for clip in clips]):
            table = table.append_column(name, pa.array(values, pa.string()))
    return table


def cleaned(sentence: str, rules: Rules) -> str:
    """Returns a sentence without surrounding spaces and, if accents are not kept, with plain Latin letters.

    Marks in other scripts are kept: there they are vowels, or form different letters.
    """
    text = " ".join(sentence.split())
    if rules.accented_letters:
        return text
    kept, is_latin = [], False
    for character in unicodedata.normalize("NFD", text):
        if not unicodedata.combining(character):
            is_latin = unicodedata.name(character, "").startswith("LATIN")
        elif is_latin:
            continue
        kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


def without_speakers(clips: Sequence[Clip], held_out: Sequence[Clip], counts: Counts) -> list[Clip]:
    """Removes clips whose speakers are in the held-out clips."""
    speakers = {clip["speaker"] for clip in held_out if clip["speaker"]}
    kept = [clip for clip in clips if clip["speaker"] not in speakers]
    counts.left_out["of speakers of a held-out split, left out"] = len(clips) - len(kept)
    counts.kept = len(kept)
    return kept


@dataclass(frozen=True)
class Made:
    """The result: counts of each split, the number of distinct sentences that two splits share, and the manifests."""

    counts: Mapping[str, Counts]
    shared: Mapping[tuple[str, str], int]
    manifests: Mapping[str, Path]


def write_manifests(
    source: Path,
    out: Path,
    tables: Mapping[str, Sequence[str]],
    *,
    language: str | None,
    rules: Rules,
    disjoint_speakers: bool,
    log: Callable[[str], None],
) -> Made:
    """Writes a manifest to `out` for each split of `tables`, which has Common Voice's tables by split.

    Clips in a folder are not copied; those in an archive that a manifest names are unpacked to `out`/clips. Existing
    manifests are replaced atomically, and so are clips with other content.

    Raises:
        DataError: the source is not Common Voice, or has several languages and none is chosen.
        StorageError: `out` cannot be written.
    """
    files = SourceFiles(StorageOptions(), None)
    corpus = CommonVoice(_folder_of(source, language, files), files)
    counts = {split: Counts() for split in tables}
    clips = {split: corpus.clips(names, rules, counts[split]) for split, names in tables.items()}
    if disjoint_speakers:
        held_out = [clip for split in HELD_OUT for clip in clips.get(split, ())]
        clips["train"] = without_speakers(clips["train"], held_out, counts["train"])
        if set(HELD_OUT) <= clips.keys():
            clips["validation"] = without_speakers(clips["validation"], clips["test"], counts["validation"])
    if empty := next((split for split, found in clips.items() if not found), None):
        raise DataError(f"{source}: no clips are left for {empty}: choose other tables for it")
    base = f"{corpus.folder}/{CLIPS}"
    with _naming(out):
        out.mkdir(parents=True, exist_ok=True)
        if not source.is_dir():
            base = CLIPS
            _unpack(
                {clip["audio"]: clip for found in clips.values() for clip in found}, source, files, out / CLIPS, log
            )
        manifests = {split: out / f"{split}.jsonl" for split in clips}
        for split, found in clips.items():
            written = ({**clip, "audio": f"{base}/{posixpath.basename(clip['audio'])}"} for clip in found)
            rows = (
                {WRITTEN.get(key, key.removeprefix(SLICE)): value for key, value in row.items() if value is not None}
                for row in written
            )
            _replace(manifests[split], to_jsonl(rows, manifests[split].name).encode())
    texts = {split: {clip["text"] for clip in found} for split, found in clips.items()}
    shared = {(one, other): len(texts[one] & texts[other]) for one, other in combinations(texts, 2)}
    return Made(counts, {pair: count for pair, count in shared.items() if count}, manifests)


def _folder_of(source: Path, language: str | None, files: SourceFiles) -> str:
    """Returns the folder of one language: a folder itself or one in it, or a folder in an archive."""
    root = source.resolve()
    if is_archive(source.name) and source.is_file():
        root = source.absolute()
        (index,) = files.indexes([str(source)])
        tables = (name for name, member in index.members.items() if name.endswith(TABLE) and not member.problem)
        folders = {posixpath.dirname(name) for name in tables} - {""}
    elif not source.is_dir():
        raise DataError(f"{source}: no such folder: name Common Voice's folder, or its archive ({', '.join(SUFFIXES)})")
    elif (source / CLIPS).is_dir():
        return str(root)
    else:
        folders = {path.name for path in root.iterdir() if (path / CLIPS).is_dir()}
    by_name = {posixpath.basename(folder): folder for folder in sorted(folders)}
    if language is None and len(by_name) > 1:
        raise DataError(f"{source} has the languages {', '.join(by_name)}: choose one with --language")
    if language is None and not by_name:
        raise DataError(f"{source} has no {CLIPS}/: name the folder of Common Voice")
    if language is not None and language not in by_name:
        raise DataError(f"{source}: no language {language!r} among {', '.join(by_name) or 'none'}")
    return f"{root}/{by_name[language or next(iter(by_name))]}"


def _unpack(
    clips: Mapping[str, Clip], source: Path, files: SourceFiles, target: Path, log: Callable[[str], None]
) -> None:
    """Unpacks clips, by their paths, from an archive; all must exist."""
    located = files.locate(table_of(clips.values()), {})
    # In the order of the archive, which is read sequentially if it is compressed.
    rows = located.table.to_pylist()
    if left := [f"{posixpath.basename(row['audio'])}: {row[PROBLEM]}" for row in rows if row[PROBLEM]]:
        raise DataError(
            f"{source}: {len(left)} of {len(rows)} clips that its tables name cannot be unpacked "
            f"({', '.join(left[:3])}): fetch the archive again"
        )
    target.mkdir(exist_ok=True)
    counter = ProgressCounter("unpack", total=len(rows), unit="clips", show=as_lines(log))
    for row, content in zip(rows, located.reader.read(rows), strict=True):
        if isinstance(content, AudioError):
            raise DataError(f"{row['audio']}: {content}")
        clip = target / posixpath.basename(row["audio"])
        if not clip.is_file() or clip.read_bytes() != content:
            _replace(clip, content)
        counter.advance(1)
    counter.done()


def _replace(path: Path, content: bytes) -> None:
    """Writes a file that appears complete or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)


@contextmanager
def _naming(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{out}: cannot be written: {error.strerror or error}; choose another --out") from None
