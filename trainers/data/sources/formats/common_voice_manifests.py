"""Manifests of Common Voice: from its folder or archive to train.jsonl, validation.jsonl and test.jsonl."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainers.config.storage_location import StorageOptions
from trainers.data.sources.archives.archive_path import SUFFIXES, is_archive, is_compressed
from trainers.data.sources.archives.open_archive import list_members, open_archive
from trainers.data.sources.archives.range_file import ReadAt
from trainers.data.sources.archives.tar_members import Member, read_content
from trainers.data.sources.formats.common_voice import (
    CLIPS,
    Clip,
    CommonVoice,
    Counts,
    Rules,
    shared_sentences,
    without_speakers,
)
from trainers.distributed.console import ProgressCounter
from trainers.distributed.console.plain_lines import as_lines
from trainers.errors import DataError, StorageError
from trainers.storage.json_files import to_jsonl

# Clips are seconds long; what claims more is none.
MAX_CLIP_BYTES = 64 * 2**20
MAX_TABLE_BYTES = 2 * 2**30
TABLE = ".tsv"
HELD_OUT = ("validation", "test")


@dataclass(frozen=True)
class Made:
    """What was written: counts of each split, and how many sentences each two have in common."""

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
    """Writes a manifest for each split of `tables`, which are Common Voice's tables by split, into `out`.

    Clips of a folder stay where they are; those of an archive that a manifest names are unpacked to `out`/clips. A
    complete manifest replaces one that is there, and so does each clip that has other bytes.

    Raises:
        DataError: the source is no Common Voice, or has several languages and none is chosen.
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
    """The corpus of a folder of one language, or of one that has a folder for each."""
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

    return CommonVoice.in_folder(str(folder), read)


def _chosen(folders: Mapping[str, Path], source: Path, language: str | None) -> Path:
    """The folder of a language among those by name."""
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
    """Common Voice's archive; a member is taken by its name below the folder of a language, and by nothing else.

    Attributes:
        path: The archive.
        folder: Folder of the language in the archive.
        members: Its files by their paths; links, devices and folders are none.
        read_at: Reads what it holds.
    """

    path: Path
    folder: Path
    members: Mapping[Path, Member]
    read_at: ReadAt

    @classmethod
    def of(cls, path: Path, language: str | None) -> "_Archive":
        """Lists an archive, which checks all of a compressed one before anything is taken from it."""
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

        return CommonVoice.in_folder(str(self.folder), read)

    def unpack(self, wanted: set[str], target: Path, log: Callable[[str], None]) -> None:
        """Unpacks clips by their names; all must be there."""
        clips = self.folder / CLIPS
        found = {name: self.members[clips / name] for name in wanted if clips / name in self.members}
        if left := sorted(wanted - found.keys()):
            raise DataError(
                f"{self.path}: {len(left)} of {len(wanted)} clips that its tables name are not in it (e.g. "
                f"{', '.join(left[:3])}): fetch the archive again"
            )
        target.mkdir(exist_ok=True)
        counter = ProgressCounter("unpack", total=len(wanted), unit="clips", show=as_lines(log))
        # A compressed archive is read forwards.
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
