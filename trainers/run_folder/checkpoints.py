"""Checkpoints of a run: made whole beside training, kept by score over all attempts, found again.

A checkpoint goes through two places. Training writes it to a staging folder on the node's own disk, where a STAGED
file makes it whole. A thread then copies it to the run folder while training goes on: files first, MANIFEST.json with
sizes and SHA-256 after them, an entry in the run's journal last. A checkpoint that the journal does not name does not
exist. What a killed process left whole in staging is brought home by the next worker on that node, so that a kill
during an upload costs no step.
"""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trainers.errors import DamagedError, FencedError
from trainers.run_folder.fencing import Entry, GroupWriter
from trainers.run_folder.journal import Checkpoint, Journal, State
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, RunFolder, now
from trainers.storage import Storage, sha256_of

MANIFEST = "MANIFEST.json"
STAGED = "STAGED.json"
# What the manifest of a damaged checkpoint is called, whose files stay for whoever wants to look.
DAMAGED = "DAMAGED.json"
_OUTPUTS = re.compile(rf"{ATTEMPTS}/\d+/outputs-\w+")
_NAME = re.compile(r"checkpoint-\d+-a\d+-\w+(-\w+)?")


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
        stays = {item.name for item in self._ranked(checkpoints)[: self.num_to_keep]}
        last = newest(checkpoints)
        return [item for item in checkpoints if item.name not in stays and item != last]

    def _ranked(self, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
        # One that a request to stop has left has no score, so it is never the best.
        scored = [item for item in checkpoints if self.score_attribute in item.metrics]
        return sorted(scored, key=lambda item: (item.metrics[self.score_attribute], -item.step, item.created))


def newest(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """The one furthest in training."""
    # Of equals the last: it was entered later.
    ordered = sorted(checkpoints, key=lambda item: (item.step, item.created))
    return ordered[-1] if ordered else None


def list_checkpoints(folder: RunFolder) -> list[Checkpoint]:
    """All checkpoints of a run that its journal names, by step."""
    return list(Journal(folder).read().checkpoints)


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


def upload_staged(staged: Path, writer: GroupWriter, keeping: Keeping) -> Checkpoint:
    """Copies a staged checkpoint to the run folder and enters it in the journal, then frees the staging folder.

    The same entry drops what the keeping policy does not keep any more; its files are deleted only then.

    Args:
        staged: Its folder. One that another group staged comes home under a name of this group's own.
        writer: This worker group.
        keeping: Which checkpoints stay.

    Raises:
        FencedError: another attempt has taken over, so it was not entered.
        StorageError: the storage does not take it.
    """
    writer.check()
    checkpoint = Checkpoint(**json.loads((staged / STAGED).read_text()))
    files = {name: {**entry, "sha256": sha256_of(staged / name)} for name, entry in sorted(checkpoint.files.items())}
    name = (
        checkpoint.name if checkpoint.name.endswith(f"-{writer.group.id}") else f"{checkpoint.name}-{writer.group.id}"
    )
    whole = replace(checkpoint, name=name, files=files)
    target = writer.folder.storage.sub(f"{CHECKPOINTS}/{name}")
    for file in files:
        target.upload_file(staged / file, file)
    target.write_bytes(MANIFEST, json.dumps(asdict(whole), indent=1).encode())
    for old in _enter(whole, writer, keeping):
        writer.folder.storage.delete_tree(f"{CHECKPOINTS}/{old}", first=MANIFEST)
    shutil.rmtree(staged)
    return whole


def _enter(checkpoint: Checkpoint, writer: GroupWriter, keeping: Keeping) -> list[str]:
    """Puts a checkpoint in the journal, and gives back the names that went with the same entry."""
    removes: list[str] = []

    def decide(state: State) -> Entry | None:
        if state.has(checkpoint.name):
            return None
        surplus = keeping.surplus([*state.checkpoints, checkpoint])
        removes[:] = [item.name for item in surplus if item.name != checkpoint.name]
        return {"kind": "checkpoint", "checkpoint": asdict(checkpoint), "removes": removes}

    try:
        writer.append(decide)
    except FencedError:
        if not writer.journal.read().has(checkpoint.name):
            writer.folder.storage.delete_tree(f"{CHECKPOINTS}/{checkpoint.name}", first=MANIFEST)
        raise
    return removes


def read_manifest(storage: Storage, name: str) -> Checkpoint:
    """What a checkpoint's own folder says of it, for one that is named by its address.

    Args:
        storage: The folder above it.
        name: Its name.

    Raises:
        DamagedError: it has no manifest.
    """
    if not storage.exists(f"{name}/{MANIFEST}"):
        raise DamagedError(f"{storage.url(name)}: no {MANIFEST}, so this is no whole checkpoint; name another one")
    return Checkpoint(**json.loads(storage.read_bytes(f"{name}/{MANIFEST}")))


def fetch(storage: Storage, checkpoint: Checkpoint, local: Path) -> None:
    """Copies a checkpoint to this node and checks each file.

    Args:
        storage: The folder above it.
        checkpoint: What its files must be, from the journal, or from its manifest.
        local: Where to copy it.

    Raises:
        DamagedError: a file is missing or changed.
        StorageError: the storage does not answer, which says nothing about the checkpoint.
    """
    for file, entry in checkpoint.files.items():
        key = f"{checkpoint.name}/{file}"
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise DamagedError(f"{storage.url(checkpoint.name)}: names the file {file}, outside it; do not use it")
        if not storage.exists(key):
            raise DamagedError(f"{storage.url(key)}: is missing; name another checkpoint")
        storage.download_file(key, local / file)
        if sha256_of(local / file) != entry["sha256"]:
            raise DamagedError(f"{storage.url(key)}: differs from its SHA-256 in {MANIFEST}; name another checkpoint")


def set_aside(writer: GroupWriter, name: str) -> None:
    """Takes a damaged checkpoint out of the journal, so that neither resuming nor choosing the best meets it again."""
    writer.append(lambda state: {"kind": "set_aside", "name": name} if state.has(name) else None)
    storage = writer.folder.storage.sub(f"{CHECKPOINTS}/{name}")
    if storage.exists(MANIFEST):
        storage.write_bytes(DAMAGED, storage.read_bytes(MANIFEST))
        storage.delete(MANIFEST)


def sweep(writer: GroupWriter) -> None:
    """Deletes what killed and stale groups left half-written, which nobody can have the journal name any more.

    Listed first and judged after: a later group writes under names that were not there when this one still held the
    run, so that even a sweep that was paused in between deletes nothing of it.
    """
    storage = writer.folder.storage
    listed = storage.sub(CHECKPOINTS).list_folders()
    outputs = [key for attempt in storage.list_folders(ATTEMPTS) for key in storage.list_folders(attempt)]
    state = writer.check()
    for name in listed:
        own = name.endswith(f"-{writer.group.id}")
        if not own and not state.has(name) and name not in state.set_aside and _NAME.fullmatch(name):
            storage.delete_tree(f"{CHECKPOINTS}/{name}", first=MANIFEST)
    named = (writer.group.outputs, state.finished.outputs if state.finished is not None else None)
    for key in outputs:
        if _OUTPUTS.fullmatch(key) and key not in named:
            storage.delete_tree(key)


class Uploader:
    """Brings staged checkpoints home in a thread, one at a time, and drops what the keeping policy does not keep.

    A new one is not taken before the last is home, so that a lost disk costs less than two save intervals.
    """

    def __init__(self, writer: GroupWriter, keeping: Keeping, also: Callable[[], None]):
        """Starts no thread yet.

        Args:
            writer: This worker group.
            keeping: Which checkpoints stay.
            also: Run in the thread after each, for what else is to be stored now and then.
        """
        self._writer = writer
        self._keeping = keeping
        self._also = also
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None

    def submit(self, staged: Path) -> None:
        """Waits for the one before, then starts to bring this one home.

        Raises:
            FencedError: another attempt has taken over.
            StorageError: the one before could not be brought home.
        """
        self.wait()
        self._thread = threading.Thread(target=self._bring, args=(staged,), name="checkpoint-upload", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until all that was submitted is home.

        Raises:
            FencedError: another attempt has taken over.
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
            upload_staged(staged, self._writer, self._keeping)
            self._also()
        except Exception as error:
            self._fault = error


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAGED)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
