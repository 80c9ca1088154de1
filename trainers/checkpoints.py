"""Checkpoints of a run: made whole beside training, kept by score over all attempts, found again.

A checkpoint goes through two places. Training writes it to a staging folder on the node's own disk, where a STAGED
file makes it whole. A thread then copies it to the run folder while training goes on: files first, MANIFEST.json with
sizes and SHA-256 last. A checkpoint without its manifest does not exist. What a killed process left whole in staging
is brought home by the next worker on that node, so that a kill during an upload costs no step.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainers.errors import DamagedError
from trainers.run_folder import now
from trainers.storage import Storage, sha256_of

MANIFEST = "MANIFEST.json"
STAGED = "STAGED.json"
# What the manifest of a damaged checkpoint is called, whose files stay for whoever wants to look.
DAMAGED = "DAMAGED.json"


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint without opening it.

    Attributes:
        name: Its folder's name, checkpoint-<step>-a<attempt>-<worker group>.
        step: Optimizer steps behind it.
        attempt: The attempt that wrote it.
        metrics: The scores on the validation set at this step.
        created: ISO 8601 time.
        files: Size in bytes and SHA-256 of each file.
    """

    name: str
    step: int
    attempt: int
    metrics: dict[str, float]
    created: str
    files: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Keeping:
    """Which checkpoints stay, see `config.CheckpointPart`."""

    num_to_keep: int | None
    score_attribute: str

    def best(self, checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
        """The one with the lowest score; the newest of equals. None where there is none."""
        ranked = self._ranked(checkpoints)
        return ranked[0] if ranked else None

    def surplus(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those that are neither among the best nor the newest, from which training goes on."""
        if self.num_to_keep is None or not checkpoints:
            return []
        stays = {newest(checkpoints), *(item.name for item in self._ranked(checkpoints)[: self.num_to_keep])}
        return [item for item in checkpoints if item.name not in stays]

    def _ranked(self, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
        return sorted(checkpoints, key=lambda item: (item.metrics[self.score_attribute], -item.step, item.created))


def newest(checkpoints: Iterable[Checkpoint]) -> str | None:
    """Name of the one furthest in training."""
    last = max(checkpoints, key=lambda item: (item.step, item.created), default=None)
    return last.name if last is not None else None


def list_checkpoints(storage: Storage) -> list[Checkpoint]:
    """All whole checkpoints of a run, by step.

    Args:
        storage: The run's checkpoints folder.
    """
    found = []
    for folder in storage.list_folders():
        if storage.exists(f"{folder}/{MANIFEST}"):
            found.append(Checkpoint(**json.loads(storage.read_bytes(f"{folder}/{MANIFEST}"))))
    return sorted(found, key=lambda item: (item.step, item.created))


def stage(folder: Path, *, step: int, attempt: int, metrics: dict[str, float]) -> None:
    """Declares a folder on the node's own disk whole, all its files written."""
    files = {str(path.relative_to(folder)): {"size_bytes": path.stat().st_size} for path in _files(folder)}
    checkpoint = Checkpoint(folder.name, step, attempt, metrics, now(), files)
    partial = folder / f"{STAGED}.part"
    partial.write_text(json.dumps(asdict(checkpoint)))
    partial.rename(folder / STAGED)


def list_staged(staging: Path) -> list[Checkpoint]:
    """Whole checkpoints that wait in a staging folder."""
    found = []
    for marker in sorted(staging.glob(f"*/{STAGED}")):
        checkpoint = Checkpoint(**json.loads(marker.read_text()))
        if all(_size(marker.parent / name) == entry["size_bytes"] for name, entry in checkpoint.files.items()):
            found.append(checkpoint)
    return found


def bring_home(staged: Path, storage: Storage) -> Checkpoint:
    """Copies a staged checkpoint to the run folder, manifest last, and frees the staging folder.

    Raises:
        StorageError: the storage does not take it.
    """
    checkpoint = Checkpoint(**json.loads((staged / STAGED).read_text()))
    files = {name: {**entry, "sha256": sha256_of(staged / name)} for name, entry in sorted(checkpoint.files.items())}
    whole = replace(checkpoint, files=files)
    target = storage.sub(checkpoint.name)
    for name in files:
        target.upload_file(staged / name, name)
    target.write_bytes(MANIFEST, json.dumps(asdict(whole), indent=1).encode())
    shutil.rmtree(staged)
    return whole


def fetch(storage: Storage, name: str, local: Path) -> Checkpoint:
    """Copies a checkpoint to this node and checks each file against the manifest.

    Raises:
        DamagedError: it has no manifest, or a file is missing or changed.
        StorageError: the storage does not answer, which says nothing about the checkpoint.
    """
    source = storage.sub(name)
    if not source.exists(MANIFEST):
        raise DamagedError(f"{source.url()}: no {MANIFEST}, so this is no whole checkpoint; name another one")
    checkpoint = Checkpoint(**json.loads(source.read_bytes(MANIFEST)))
    for file, entry in checkpoint.files.items():
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise DamagedError(f"{source.url(MANIFEST)}: names the file {file}, outside the checkpoint; do not use it")
        if not source.exists(file):
            raise DamagedError(f"{source.url(file)}: is missing, though {MANIFEST} names it; name another checkpoint")
        source.download_file(file, local / file)
        if sha256_of(local / file) != entry["sha256"]:
            raise DamagedError(f"{source.url(file)}: differs from its SHA-256 in {MANIFEST}; name another checkpoint")
    return checkpoint


def set_aside(storage: Storage, name: str) -> None:
    """Takes the manifest from a damaged checkpoint, so that neither resuming nor choosing the best meets it again."""
    if storage.exists(f"{name}/{MANIFEST}"):
        storage.write_bytes(f"{name}/{DAMAGED}", storage.read_bytes(f"{name}/{MANIFEST}"))
        storage.delete(f"{name}/{MANIFEST}")


class Uploader:
    """Brings staged checkpoints home in a thread, one at a time, and drops what the keeping policy does not keep.

    A new one is not taken before the last is home, so that a lost disk costs less than two save intervals.
    """

    def __init__(self, storage: Storage, keeping: Keeping, also: Callable[[], None]):
        """Starts no thread yet.

        Args:
            storage: The run's checkpoints folder.
            keeping: Which checkpoints stay.
            also: Run in the thread after each, for what else is to be stored now and then.
        """
        self._storage = storage
        self._keeping = keeping
        self._also = also
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None

    def submit(self, staged: Path) -> None:
        """Waits for the one before, then starts to bring this one home.

        Raises:
            StorageError: the one before could not be brought home.
        """
        self.wait()
        self._thread = threading.Thread(target=self._bring, args=(staged,), name="checkpoint-upload", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until all that was submitted is home.

        Raises:
            StorageError: it could not be brought home.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def _bring(self, staged: Path) -> None:
        try:
            bring_home(staged, self._storage)
            for checkpoint in self._keeping.surplus(list_checkpoints(self._storage)):
                self._storage.delete_tree(checkpoint.name, first=MANIFEST)
            self._also()
        except Exception as error:
            self._fault = error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAGED)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
