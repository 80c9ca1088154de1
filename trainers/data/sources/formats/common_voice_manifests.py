"""Manifests of Common Voice: from its folder or archive to train.jsonl, validation.jsonl and test.jsonl."""

import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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

ARCHIVES = (".tar.gz", ".tgz", ".tar")
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
    complete manifest replaces one that is there; clips that are there with the right size are kept.

    Raises:
        DataError: the source is no Common Voice, or has several languages and none is chosen.
        StorageError: `out` cannot be written.
    """
    archive = _Archive.of(source, language) if source.name.endswith(ARCHIVES) else None
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
        raise DataError(f"{source}: no such folder: name Common Voice's folder, or its archive ({', '.join(ARCHIVES)})")
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
        tables: Bytes of each table by its name.
        folder: Folder of the language in the archive.
    """

    path: Path
    folder: Path
    tables: Mapping[str, bytes]

    @classmethod
    def of(cls, path: Path, language: str | None) -> "_Archive":
        """Reads the tables of an archive."""
        tables: dict[Path, dict[str, bytes]] = {}
        for name, member, open_member in _members(path):
            if name.suffix == TABLE and len(name.parts) > 1:
                content = _read(path, member, open_member, MAX_TABLE_BYTES)
                tables.setdefault(name.parent, {})[name.name] = content
        folder = _chosen({each.name: each for each in tables}, path, language)
        return cls(path, folder, tables[folder])

    def corpus(self) -> CommonVoice:
        return CommonVoice.in_folder(str(self.folder), self.tables.get)

    def unpack(self, wanted: set[str], target: Path, log: Callable[[str], None]) -> None:
        """Unpacks clips by their names; all must be there."""
        target.mkdir(exist_ok=True)
        left, counter = set(wanted), ProgressCounter("unpack", total=len(wanted), unit="clips", show=as_lines(log))
        for name, member, open_member in _members(self.path):
            if name.parent != self.folder / CLIPS or name.name not in left:
                continue
            left.remove(name.name)
            clip = target / name.name
            if not clip.is_file() or clip.stat().st_size != member.size:
                part = target / f".{name.name}.part"
                part.write_bytes(_read(self.path, member, open_member, MAX_CLIP_BYTES))
                part.replace(clip)
            counter.advance(1)
        counter.done()
        if left:
            raise DataError(
                f"{self.path}: {len(left)} of {len(wanted)} clips that its tables name are not in it (e.g. "
                f"{', '.join(sorted(left)[:3])}): fetch the archive again"
            )


def _members(path: Path) -> Iterator[tuple[Path, tarfile.TarInfo, Callable[[], IO[bytes] | None]]]:
    """Files of an archive, read once from its beginning to its end; links, devices and folders are none."""
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.isreg():
                    yield Path(member.name), member, lambda member=member: archive.extractfile(member)  # type: ignore[misc]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file: name Common Voice's archive") from None
    # What zlib and lzma raise has no base of its own.
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path}: the archive is damaged or cut short ({error}): fetch it again") from None


def _read(path: Path, member: tarfile.TarInfo, open_member: Callable[[], IO[bytes] | None], most: int) -> bytes:
    if member.size > most:
        raise DataError(f"{path}: {member.name} claims {member.size} bytes, which no such file of Common Voice has")
    file = open_member()
    assert file is not None, "it is a regular file"
    return file.read()


@contextmanager
def _naming(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{out}: cannot be written: {error.strerror or error}; choose another --out") from None
