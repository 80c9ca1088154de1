"""A folder of recordings, each with its transcript in a .txt of the same name next to it."""

import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from trainers.data.sources.data_source import table_of
from trainers.data.sources.manifest_fields import AUDIO_ENDINGS, decode, in_utf_8
from trainers.errors import ConfigError, DataError

TEXT = ".txt"
_SUFFIXES = frozenset(f".{ending}" for ending in AUDIO_ENDINGS)


@dataclass(frozen=True)
class FolderFiles:
    """All files below a folder, as paths from it, sorted; hidden ones are left out."""

    names: list[str]

    def has_ending(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self.names)

    @property
    def recordings(self) -> list[str]:
        return [name for name in self.names if posixpath.splitext(name)[1].lower() in _SUFFIXES]


def list_folder(folder: Path, tell: Callable[[str], None]) -> FolderFiles:
    """Lists all files below a folder; raises DataError where one cannot be listed."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}: let this user read it") from None

    found: list[str] = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = os.path.relpath(root, folder)
        prefix = "" if below == "." else f"{below}/"
        found += [f"{prefix}{name}" for name in names if not name.startswith(".")]
        tell(f"{folder}: {len(found):,} files so far")
    return FolderFiles(sorted(found))


def rows_next_to_recordings(folder: Path, files: FolderFiles, encoding: str) -> tuple[pa.Table, list[str]]:
    """A table of ROW_SCHEMA of the recordings that have a transcript, and what was left out.

    Raises:
        ConfigError: there are no recordings, or no transcripts; says what is needed.
        DataError: a transcript is of another encoding.
    """
    recordings, names = files.recordings, frozenset(files.names)
    if not recordings:
        raise ConfigError(
            f"{folder}: no recordings (.wav, .flac, .mp3, …) and no manifest in it or below: name a folder of "
            "recordings, or a manifest (.csv, .tsv, .jsonl)"
        )
    with_text = [name for name in recordings if _text_of(name) in names]
    if not with_text:
        first = Path(recordings[0])
        raise ConfigError(
            f"{folder}: recordings ({len(recordings):,}), but no transcripts, and training needs what is said in each: "
            f"write it into {first.with_suffix(TEXT)} next to {first} and so on, or write a manifest {folder}/all.csv "
            "with the columns path,text and a line for each recording"
        )
    rows = [row for row in _rows(folder, with_text, encoding) if row["text"]]
    empty = len(with_text) - len(rows)
    without = len(recordings) - len(with_text)
    notes = [f"left out, recordings without a .txt: {without:,}"] if without else []
    notes += [f"left out, recordings with an empty .txt: {empty:,}"] if empty else []
    if not rows:
        raise ConfigError(f"{folder}: each .txt is empty: write into it what is said in the recording of its name")
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
