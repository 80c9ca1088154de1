"""Common Voice as distributed by Mozilla: a folder of one language with a TSV for each split, next to its clips.

Manifests are written from such a folder, or from the archive: train.jsonl, validation.jsonl and test.jsonl.
"""

import csv
import io
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainers.config.storage_location import StorageOptions
from trainers.config.wording import counted
from trainers.data.sources.archives.archive_path import SUFFIXES, is_archive, is_compressed
from trainers.data.sources.archives.open_archive import list_members, open_archive
from trainers.data.sources.archives.tar_members import Member, ReadAt, read_content
from trainers.data.sources.data_source import SLICE, table_of
from trainers.data.sources.manifest_fields import to_seconds
from trainers.distributed.console import ProgressCounter
from trainers.distributed.console.plain_lines import as_lines
from trainers.errors import DataError, StorageError
from trainers.storage.json_files import to_jsonl

CLIPS, DURATIONS = "clips", "clip_durations.tsv"
# Mozilla's names of the splits.
SPLIT_FILES = {"train": "train", "validation": "dev", "test": "test"}
# Columns of clip, text and speaker, in releases of all years.
AUDIO, SENTENCE, SPEAKER = "path", "sentence", "client_id"
# Columns with self-reported properties of speakers.
SLICES = ("accents", "accent", "variant", "age", "gender")
# Suffix of clips in the first releases, whose tables leave it out.
EXTENSION = ".mp3"
# Clips are seconds long; a larger size is an error.
MAX_CLIP_BYTES = 64 * 2**20
MAX_TABLE_BYTES = 2 * 2**30
TABLE = ".tsv"
HELD_OUT = ("validation", "test")

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Clip:
    """One row: file name, sentence and speaker of a clip; and its duration in seconds, if known.

    `slices`: the columns of SLICES that have a value.
    """

    file: str
    text: str
    speaker: str
    duration_s: float | None
    slices: Mapping[str, str] = field(default_factory=dict)


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
    """Numbers of clips of a split that were left out, by reason; `kept` are the others."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    repeated: int = 0
    of_other_speakers: int = 0

    def lines(self) -> Iterator[str]:
        """Yields a line for each reason that has clips."""
        told = {
            "empty": "without a sentence, left out",
            "too_long": "with a longer sentence than --max-characters, left out",
            "repeated": "in several of the tables, taken once",
            "of_other_speakers": "of speakers of a held-out split, left out",
        }
        for each in fields(self):
            if (count := getattr(self, each.name)) and each.name in told:
                yield f"{counted(count, 'clip')} {told[each.name]}"


@dataclass(frozen=True)
class CommonVoice:
    """A folder of one language.

    Attributes:
        folder: Its path or URL.
        read: Returns the content of a file in the folder by name; None if there is none.
        contents: Content of each file that was read, by name.
    """

    folder: str
    read: Read
    contents: dict[str, bytes] = field(default_factory=dict)

    def clips(self, tables: Sequence[str], rules: Rules, counts: Counts) -> list[Clip]:
        """Returns the clips of tables such as train and other, each once, in their order.

        Raises:
            DataError: a table is missing, or is not one of Common Voice.
        """
        durations_s = self._durations_s()
        found: dict[str, Clip] = {}
        for table in tables:
            for row in self._rows(f"{table}.tsv", (AUDIO, SENTENCE)):
                file = self._file(row[AUDIO])
                text = cleaned(row[SENTENCE], rules)
                if file in found and text not in ("", found[file].text):
                    raise DataError(
                        f"{self.folder}/{table}.tsv: the clip {file} has two sentences, {found[file].text!r} and "
                        f"{text!r}: keep the one that is meant"
                    )
                if file in found:
                    counts.repeated += 1
                elif not text:
                    counts.empty += 1
                elif rules.max_characters is not None and len(text) > rules.max_characters:
                    counts.too_long += 1
                else:
                    slices = {name: row[name] for name in SLICES if row.get(name)}
                    found[file] = Clip(file, text, row.get(SPEAKER, ""), durations_s.get(file), slices)
        counts.kept = len(found)
        return list(found.values())

    def rows(self, clips: Sequence[Clip]) -> pa.Table:
        """Returns a table of ROW_SCHEMA and slices."""
        base = f"{self.folder}/{CLIPS}"
        table = table_of(
            {
                "id": posixpath.splitext(clip.file)[0],
                "audio": f"{base}/{clip.file}",
                "text": clip.text,
                "speaker": clip.speaker or None,
                "duration_s": clip.duration_s,
            }
            for clip in clips
        )
        for name in SLICES:
            values = [clip.slices.get(name) for clip in clips]
            if any(values):
                table = table.append_column(f"{SLICE}{name}", pa.array(values, pa.string()))
        return table

    def _file(self, path: str) -> str:
        if not path or "/" in path or path.startswith("."):
            raise DataError(f"{self.folder}: a table names the clip {path!r}, which is no name of a file in {CLIPS}/")
        return path if posixpath.splitext(path)[1] else path + EXTENSION

    def _durations_s(self) -> dict[str, float]:
        if self._content(DURATIONS) is None:
            return {}
        # The second column's name differs between releases, e.g. duration[ms].
        rows = list(self._rows(DURATIONS, ("clip",)))
        column = next((name for name in (rows[0] if rows else {}) if name.startswith("duration")), None)
        if column is None:
            return {}
        try:
            return {row["clip"]: to_seconds(row[column]) / 1000 for row in rows}
        except ValueError as error:
            raise DataError(f"{self.folder}/{DURATIONS}: {error}: a duration is a number of milliseconds") from None

    def _rows(self, name: str, wanted: Sequence[str]) -> Iterator[Mapping[str, str]]:
        where, content = f"{self.folder}/{name}", self._content(name)
        if content is None:
            raise DataError(
                f"{where}: no such table: name the folder of one language of Common Voice, in which {CLIPS}/ lies too"
            )
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(f"{where}: line {line} is not UTF-8: fetch the table again, or set data.encoding") from None
        # Sentences have unclosed quotes.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(reader, [])
        if missing := [column for column in wanted if column not in header]:
            raise DataError(f"{where}: no column {missing[0]!r} among {', '.join(header)}: is it Common Voice's?")
        for values in _lines(where, reader):
            if len(values) != len(header):
                raise DataError(
                    f"{where}: line {reader.line_num} has {len(values)} fields where the header has {len(header)}: "
                    "fetch the table again"
                )
            yield dict(zip(header, values, strict=True))

    def _content(self, name: str) -> bytes | None:
        if name not in self.contents and (content := self.read(name)) is not None:
            self.contents[name] = content
        return self.contents.get(name)


def _lines(where: str, reader: Any) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{where}: line {reader.line_num}: {error}: fetch the table again") from None


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
    speakers = {clip.speaker for clip in held_out if clip.speaker}
    kept = [clip for clip in clips if clip.speaker not in speakers]
    counts.of_other_speakers = len(clips) - len(kept)
    counts.kept = len(kept)
    return kept


def shared_sentences(splits: Mapping[str, Sequence[Clip]]) -> dict[tuple[str, str], int]:
    """Returns the number of distinct sentences that each two splits share; pairs that share none are left out."""
    texts = {name: Counter(clip.text for clip in clips) for name, clips in splits.items()}
    names = list(texts)
    pairs = ((one, other) for number, one in enumerate(names) for other in names[number + 1 :])
    found = {pair: len(texts[pair[0]].keys() & texts[pair[1]].keys()) for pair in pairs}
    return {pair: count for pair, count in found.items() if count}


@dataclass(frozen=True)
class Made:
    """The result: counts of each split, the number of sentences that each two share, and the manifests."""

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
    archive = _Archive.of(source, language) if is_archive(source.name) and source.is_file() else None
    corpus = archive.corpus() if archive is not None else _in_folder(source, language)
    counts = {split: Counts() for split in tables}
    clips = {split: corpus.clips(names, rules, counts[split]) for split, names in tables.items()}
    if disjoint_speakers:
        held_out = [clip for split in HELD_OUT for clip in clips.get(split, ())]
        clips["train"] = without_speakers(clips["train"], held_out, counts["train"])
        if set(HELD_OUT) <= clips.keys():
            chosen = clips["validation"]
            clips["validation"] = without_speakers(chosen, clips["test"], counts["validation"])
    for split, found in clips.items():
        if not found:
            raise DataError(f"{source}: no clips are left for {split}: choose other tables for it")
    with _naming(out):
        out.mkdir(parents=True, exist_ok=True)
        if archive is not None:
            wanted = {clip.file for found in clips.values() for clip in found}
            archive.unpack(wanted, out / CLIPS, log)
        base = CLIPS if archive is not None else f"{Path(corpus.folder).resolve()}/{CLIPS}"
        manifests = {split: _write(out / f"{split}.jsonl", found, base) for split, found in clips.items()}
    return Made(counts, shared_sentences(clips), manifests)


def _write(path: Path, clips: Sequence[Clip], base: str) -> Path:
    rows = (
        {
            **clip.slices,
            "id": Path(clip.file).stem,
            "path": f"{base}/{clip.file}",
            "text": clip.text,
            **({"speaker": clip.speaker} if clip.speaker else {}),
            **({"duration": clip.duration_s} if clip.duration_s is not None else {}),
        }
        for clip in clips
    )
    part = path.with_name(f".{path.name}.part")
    part.write_text(to_jsonl(rows, path.name), encoding="utf-8")
    part.replace(path)
    return path


def _in_folder(source: Path, language: str | None) -> CommonVoice:
    """Returns the corpus of a folder of one language, or of a folder with subfolders for languages."""
    if not source.is_dir():
        raise DataError(f"{source}: no such folder: name Common Voice's folder, or its archive ({', '.join(SUFFIXES)})")
    is_language = (source / CLIPS).is_dir()
    folders = [source] if is_language else sorted(path for path in source.iterdir() if (path / CLIPS).is_dir())
    folder = _chosen({path.name: path for path in folders}, source, None if is_language else language)

    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{folder / name}: cannot be read: {error.strerror}; change its rights") from None

    return CommonVoice(str(folder), read)


def _chosen(folders: Mapping[str, Path], source: Path, language: str | None) -> Path:
    """Returns the folder of a language, out of folders by name."""
    if language is not None:
        if language not in folders:
            raise DataError(f"{source}: no language {language!r} among {', '.join(folders) or 'none'}")
        return folders[language]
    if len(folders) != 1:
        found = f"has the languages {', '.join(folders)}: choose one with --language" if folders else "has no clips/"
        raise DataError(f"{source} {found}" + ("" if folders else ": name the folder of Common Voice"))
    return next(iter(folders.values()))


@dataclass(frozen=True)
class _Archive:
    """Common Voice's archive; members are identified only by their path below the folder of a language.

    Attributes:
        path: The archive.
        folder: Folder of the language in the archive.
        members: Its files by path; without links, devices and folders.
        read_at: Reads its uncompressed content.
    """

    path: Path
    folder: Path
    members: Mapping[Path, Member]
    read_at: ReadAt

    @classmethod
    def of(cls, path: Path, language: str | None) -> "_Archive":
        """Lists an archive, which checks all of a compressed one before anything is extracted."""
        location = str(path)
        try:
            read_at, points = open_archive(location, path.stat().st_size, StorageOptions())
            members: dict[Path, Member] = {}
            for member in list_members(location, read_at, points):
                if not member.problem:
                    if (name := Path(member.name)) in members:
                        raise DataError(f"{path}: holds {member.name} twice: fetch the archive again")
                    members[name] = member
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}; change its rights") from None
        tables = {name.parent for name in members if name.suffix == TABLE and len(name.parts) > 1}
        return cls(path, _chosen({each.name: each for each in tables}, path, language), members, read_at)

    def corpus(self) -> CommonVoice:
        def read(name: str) -> bytes | None:
            member = self.members.get(self.folder / name)
            return self._read(member, MAX_TABLE_BYTES) if member is not None else None

        return CommonVoice(str(self.folder), read)

    def unpack(self, wanted: set[str], target: Path, log: Callable[[str], None]) -> None:
        """Unpacks clips by name; all must exist."""
        clips = self.folder / CLIPS
        found = {name: self.members[clips / name] for name in wanted if clips / name in self.members}
        if left := sorted(wanted - found.keys()):
            raise DataError(
                f"{self.path}: {len(left)} of {len(wanted)} clips that its tables name are not in it (e.g. "
                f"{', '.join(left[:3])}): fetch the archive again"
            )
        target.mkdir(exist_ok=True)
        counter = ProgressCounter("unpack", total=len(wanted), unit="clips", show=as_lines(log))
        # A compressed archive is read sequentially.
        for name, member in sorted(found.items(), key=lambda each: each[1].offset):
            clip, content = target / name, self._read(member, MAX_CLIP_BYTES)
            if not clip.is_file() or clip.read_bytes() != content:
                part = target / f".{name}.part"
                part.write_bytes(content)
                part.replace(clip)
            counter.advance(1)
        counter.done()

    def _read(self, member: Member, most: int) -> bytes:
        if member.size > most:
            raise DataError(
                f"{self.path}: {member.name} claims {member.size} bytes, which no such file of Common Voice has"
            )
        content = read_content(member, self.read_at, with_content=is_compressed(self.path.name))
        if content is None:
            raise DataError(f"{self.path}: the archive was replaced while it was read: start again")
        return content


@contextmanager
def _naming(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{out}: cannot be written: {error.strerror or error}; choose another --out") from None
