"""Detects the checkpoints of programs in their output folder, and when they are complete.

A program does not report that it has written a checkpoint. The Trainer of transformers writes `trainer_state.json`
last. SpeechBrain writes `CKPT.yaml` first, and others have no such file, so their checkpoints count as complete once
they have not changed for a while.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath

import yaml

from trainers.errors import ConfigError

AUTO = "auto"
# Time for which a checkpoint must be unchanged to count as complete. The first is for checkpoints whose last file
# exists, since other ranks may still write; the second, if nothing else shows that they are complete.
MARKED_STABLE_S, UNMARKED_STABLE_S = 2.0, 6.0
# Maximum depth below the output folder.
_MOST_LEVELS = 7
# Size of Python's buffer; a file up to this size is written in one piece.
_WRITTEN_AT_ONCE_BYTES = 4096
_ZIP_BEGIN, _ZIP_END, _ZIP_END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22

# Name, size in bytes and modification time of each file; the name is "" if the checkpoint is a single file.
Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint in a program's output folder.

    Attributes:
        path: Path of its folder, or of its only file, relative to the output folder.
        step: Number of completed optimizer steps; None if not known.
        is_marked_whole: True if the files by which it is detected exist, and no file is visibly truncated.
        has_last_file: True if one of these files is the last that the program writes.
    """

    path: str
    step: int | None
    is_marked_whole: bool
    has_last_file: bool = False

    @property
    def stable_s(self) -> float:
        return MARKED_STABLE_S if self.has_last_file else UNMARKED_STABLE_S


@dataclass(frozen=True)
class CheckpointLayout:
    """The layout of one kind of program's checkpoints.

    Attributes:
        has_path: Returns a true value if a path below the output folder is a checkpoint.
        step_of: Returns the step of a checkpoint from its name or content; None if not known.
        is_marked: Returns True if the files by which a checkpoint is detected exist.
        has_last_file: True if one of these files is the last that the program writes.
        takes_files: True if a single file may be a checkpoint.
        is_read_by_all: True if every rank reads the checkpoints that the main process has written.
    """

    has_path: Callable[[str], object]
    step_of: Callable[[Path], int | None]
    is_marked: Callable[[Path], bool]
    has_last_file: bool = False
    takes_files: bool = False
    is_read_by_all: bool = False


def layouts_for(checkpoints: str) -> tuple[CheckpointLayout, ...]:
    """Returns the layouts to look for: all known ones for "auto", else that of a pattern such as `ckpt/step-*`.

    Raises:
        ConfigError: the pattern does not describe paths below the output folder.
    """
    if checkpoints == AUTO:
        return _KNOWN
    parts = PurePosixPath(checkpoints).parts
    if not parts or parts[0] == "/" or ".." in parts or all(part == "**" for part in parts):
        raise ConfigError(
            f"script.checkpoints: {checkpoints!r} is not a pattern of paths below the output folder: give one such as "
            f"'ckpt/step-*' or 'last.pt', or {AUTO!r}"
        )
    return (
        CheckpointLayout(
            lambda path: _matches(parts, PurePosixPath(path).parts),
            _number_in_name,
            lambda path: any(files_of(path)),
            takes_files=True,
        ),
    )


def layout_at(path: str, layouts: Sequence[CheckpointLayout], *, is_file: bool) -> CheckpointLayout | None:
    """Returns the layout of a file or folder below the output folder; None if it is not a checkpoint."""
    if len(PurePosixPath(path).parts) > _MOST_LEVELS:
        return None
    return next((each for each in layouts if each.has_path(path) and (each.takes_files or not is_file)), None)


def find(folder: Path, layouts: Sequence[CheckpointLayout]) -> list[FoundCheckpoint]:
    """Returns all checkpoints below a folder, complete or not, in the order in which they were written."""
    found: list[tuple[int, int, FoundCheckpoint]] = []

    def is_found(path: str, *, is_file: bool) -> bool:
        layout = layout_at(path, layouts, is_file=is_file)
        if layout is not None:
            signature = signature_of(folder / path)
            item = _described(layout, folder, path, signature)
            changed_ns = max((changed for _, _, changed in signature), default=0)
            found.append((item.step if item.step is not None else -1, changed_ns, item))
        return layout is not None

    for parent, folders, files in os.walk(folder):
        here = Path(parent).relative_to(folder)
        inside = [name for name in folders if not is_found((here / name).as_posix(), is_file=False)]
        folders[:] = inside if len(here.parts) + 1 < _MOST_LEVELS else []
        for name in files:
            is_found((here / name).as_posix(), is_file=True)
    return [item for _, _, item in sorted(found, key=lambda each: each[:2])]


def files_of(path: Path) -> Iterator[Path]:
    """Yields the files of a checkpoint, at any depth."""
    if path.is_file():
        yield path
    for parent, _, names in os.walk(path):
        yield from (file for name in names if (file := Path(parent, name)).is_file())


def signature_of(path: Path) -> Signature:
    """Returns a signature that changes with a checkpoint's files; the signature is empty if there are no files."""
    found = []
    for file in files_of(path):
        try:
            status = file.stat()
        except OSError:
            continue
        name = "" if file == path else file.relative_to(path).as_posix()
        found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def remove_checkpoint(path: Path) -> None:
    """Deletes a checkpoint, which may be a folder or a single file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class Watch:
    """Measures how long each path has been unchanged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._since: dict[Path, tuple[Signature, float]] = {}

    def look(self, path: Path) -> tuple[Signature, float]:
        """Returns the signature of a path, and the number of seconds since it changed."""
        signature, now_s = signature_of(path), self._clock()
        if self._since.get(path, (None, 0.0))[0] != signature:
            self._since[path] = (signature, now_s)
        return signature, now_s - self._since[path][1]

    def restart(self) -> None:
        """Measures from now on, so that the time before does not count."""
        self._since.clear()


def _number_in_name(path: Path) -> int | None:
    numbers = re.findall(r"\d+", path.name)
    return int(numbers[-1]) if numbers else None


def _speechbrain_step(path: Path) -> int | None:
    """Returns the optimizer steps or, if not known, the epochs, from the YAML of the Brain and the epoch counter."""
    for name, key in (("brain.ckpt", "optimizer_step"), ("brain.ckpt", "step"), ("counter.ckpt", "current_epoch")):
        try:
            content = yaml.safe_load((path / name).read_text())
        except (OSError, ValueError, yaml.YAMLError):
            continue
        step = content.get(key) if isinstance(content, dict) else content
        if isinstance(step, int):
            return step
    return None


def _has_trainer_state(path: Path) -> bool:
    try:
        json.loads((path / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return True


def shows_its_end(path: Path) -> bool:
    """Returns True if each file of a checkpoint is a complete archive, or so short that it is written in one piece."""
    return all(_is_cut(file) is False or 0 < file.stat().st_size <= _WRITTEN_AT_ONCE_BYTES for file in files_of(path))


def _is_cut(file: Path) -> bool | None:
    """Returns True if a zip archive of torch lacks its directory, which is written last; None if not an archive."""
    try:
        with file.open("rb") as opened:
            if opened.read(len(_ZIP_BEGIN)) != _ZIP_BEGIN:
                return None
            opened.seek(0, os.SEEK_END)
            opened.seek(max(0, opened.tell() - _ZIP_END_BYTES))
            return not opened.read().startswith(_ZIP_END)
    except OSError:
        return True


@lru_cache(maxsize=1024)
def _described(layout: CheckpointLayout, folder: Path, path: str, signature: Signature) -> FoundCheckpoint:
    """Reads a checkpoint. The result is cached by signature, since this is called every second."""
    here = folder / path
    is_whole = layout.is_marked(here) and not any(_is_cut(file) for file in files_of(here))
    return FoundCheckpoint(path, layout.step_of(here), is_whole, layout.has_last_file)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Returns True if the parts of a path match those of a pattern; `**` matches any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[start:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(pattern[1:], parts[1:])


def _has_ckpt_yaml_and_more(path: Path) -> bool:
    return (path / "CKPT.yaml").is_file() and any(file.name != "CKPT.yaml" for file in files_of(path))


_KNOWN = (
    CheckpointLayout(
        re.compile(r"(?:.+/)?checkpoint-\d+").fullmatch, _number_in_name, _has_trainer_state, has_last_file=True
    ),
    # SpeechBrain: every rank loads the best checkpoint before a test, or averages several. All ranks delete a
    # checkpoint together, so a rank that did not find it would make the others wait.
    CheckpointLayout(
        re.compile(r"(?:.+/)?CKPT\+[^/]+").fullmatch, _speechbrain_step, _has_ckpt_yaml_and_more, is_read_by_all=True
    ),
)
