"""Checkpoints of a run: uploaded during training, retained by score over all attempts, fetched and verified.

Training completes a checkpoint on the node's own disk (`staging.stage`). A thread (`Uploader`) copies its files to the
run folder, then MANIFEST.json with sizes and SHA-256, and enters it in the journal last. One that a killed process left
in staging is uploaded by the next worker on that node (`resume.take_over`), so that a kill during an upload costs no
step. One that is found damaged is quarantined.
"""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainers.errors import DamagedError, FencedError, ResumeError
from trainers.run_folder.fencing import Entry, GroupWriter
from trainers.run_folder.journal import Checkpoint, Journal, State
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, RunFolder
from trainers.run_folder.staging import NodePart, read_staged
from trainers.storage import Storage, sha256_of

MANIFEST = "MANIFEST.json"
# What a node other than the main process's has stored of a checkpoint; the manifest has it too.
PART = "PART-{}.json"
POLL_S = 0.2
# The name that the manifest of a quarantined checkpoint gets; its files stay for inspection.
DAMAGED = "DAMAGED.json"
# Lines of metrics up to its step that the run folder's storage had not taken when it was written.
UNWRITTEN_METRICS = "unwritten-metrics.jsonl"
# What training needs to go on, and nobody else; the optimizer's is twice the model.
TRAINING_STATE = {"optimizer.pt", "scheduler.pt", "scaler.pt", "trainer_state.json", "original.json", UNWRITTEN_METRICS}
# In an adapter's checkpoint: the weights that it was trained on; in one of a model whose loss compares it with those
# that the run began with: these. Its `folder` names a run's own, which are a folder next to the checkpoints.
BASE, ORIGINAL = "base.json", "original.json"
# Written last.
_BASE_COMPLETE = "config.json"
_BASE_FOLDER = re.compile(r"base-[0-9a-f]{16}")
_WEIGHTS = re.compile(rf"(adapter_)?model.*\.safetensors|pytorch_model.*\.bin|adapter_config\.json|{re.escape(BASE)}")
# The same of DeepSpeed: each rank's shard, which of several is meant, and programs that put shards together.
_DEEPSPEED = r"global_step\d+/.*|latest|zero_to_\w+\.py"
# Of FSDP2: each rank's shards, and what they are parts of.
_FSDP = r"(pytorch_model_fsdp|optimizer)(_0/.*|\.bin)"
_SHARDS = re.compile(f"{_DEEPSPEED}|{_FSDP}")
# The rank whose shard a file is.
_OWNER = re.compile(r"zero_pp_rank_(\d+)_")
_OUTPUTS = re.compile(rf"{ATTEMPTS}/\d+/outputs-\w+")
_NAME = re.compile(r"checkpoint-\d+-a\d+-\w+(-\w+)?")
# Size in bytes and SHA-256 of files, by their names.
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints stay, see `run_part.CheckpointPart`."""

    num_to_keep: int | None
    score_attribute: str
    score_order: Literal["min", "max"] = "min"

    def best(self, checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
        """The checkpoint with the best score, the newest of equal ones; None if there is none."""
        return next(iter(self._ranked(checkpoints)), None)

    def surplus(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """The checkpoints that are neither among the best nor the newest, from which training would resume."""
        if self.num_to_keep is None or not checkpoints:
            return []
        # Programs of others may have no scores at all.
        ranked = self._ranked(checkpoints) or sorted(checkpoints, key=lambda item: item.step, reverse=True)
        stays = {item.name for item in ranked[: self.num_to_keep]}
        last = newest(checkpoints)
        return [item for item in checkpoints if item.name not in stays and item != last]

    def _ranked(self, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
        # One that was saved on a request to stop has no score, and one of another program perhaps a number that is not
        # finite: neither is ever the best.
        scored = [item for item in checkpoints if item.finite_metrics.get(self.score_attribute) is not None]
        sign = -1 if self.score_order == "max" else 1
        return sorted(scored, key=lambda item: (sign * item.metrics[self.score_attribute], -item.step, item.created))


def newest(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """The checkpoint with the most steps."""
    # Of equals the last: it was entered later.
    ordered = sorted(checkpoints, key=lambda item: (item.step, item.created))
    return ordered[-1] if ordered else None


def list_checkpoints(folder: RunFolder, *, most_bytes: int | None = None) -> list[Checkpoint]:
    """All checkpoints of a run that its journal names, by step; see Journal for `most_bytes`."""
    return list(Journal(folder, most_bytes=most_bytes).read().checkpoints)


def upload_staged(staged: Path, writer: GroupWriter, retention: RetentionPolicy) -> Checkpoint:
    """Uploads a staged checkpoint, or the first of its parts, which enters it, and deletes the staged files."""
    checkpoint, part = _of_this_group(staged, writer)

    def others(target: Storage) -> Files:
        return collect_parts(target, range(1, part.total), lambda _: writer.check())

    complete = upload(checkpoint, staged, writer, retention, others)
    shutil.rmtree(staged)
    return complete


def upload_part(staged: Path, writer: GroupWriter) -> None:
    """Uploads a part of a checkpoint, not its first; the staged files stay until it is entered. Raises as `upload`."""
    writer.check()
    checkpoint, part = _of_this_group(staged, writer)
    target = writer.folder.storage.sub(f"{CHECKPOINTS}/{checkpoint.name}")
    enter_part(target, part.number, store_files(staged, checkpoint.files, target))


def _of_this_group(staged: Path, writer: GroupWriter) -> tuple[Checkpoint, NodePart]:
    """A staged checkpoint; one that another group staged under a name of this group, the same for all its parts."""
    checkpoint, part = read_staged(staged)
    if not checkpoint.name.endswith(f"-{writer.group.id}"):
        # Scores of this group are finite; what another group staged may not be.
        name = f"{checkpoint.name}-{writer.group.id}"
        checkpoint = replace(checkpoint, name=name, metrics=checkpoint.finite_metrics)
    return checkpoint, part


def upload(
    checkpoint: Checkpoint,
    local: Path,
    writer: GroupWriter,
    retention: RetentionPolicy,
    others: Callable[[Storage], Files],
) -> Checkpoint:
    """Stores a checkpoint, of a training or a program, and enters it in the journal once all nodes have stored theirs.

    It is as the journal will have it, but for its files: it has the names of this node's, which are in `local`. Others
    gives the files of other nodes once they are in the folder that it is given, see `collect_parts`; what it raises
    leaves the checkpoint without an entry. For `retention` see `enter`.

    Raises:
        FencedError: another attempt has taken over, so it was not entered.
        StorageError: the storage does not accept it.
    """
    writer.check()
    target = writer.folder.storage.sub(f"{CHECKPOINTS}/{checkpoint.name}")
    files = store_files(local, checkpoint.files, target)
    files |= others(target)
    complete = replace(checkpoint, files=dict(sorted(files.items())))
    enter(complete, writer, retention)
    return complete


def store_files(local: Path, files: Iterable[str], target: Storage) -> Files:
    """Copies files of a local folder to the folder of a checkpoint; gives their sizes and SHA-256."""
    stored = {}
    for name in sorted(files):
        stored[name] = {"size_bytes": (local / name).stat().st_size, "sha256": sha256_of(local / name)}
        target.upload_file(local / name, name)
    return stored


def enter_part(target: Storage, number: int, files: Files) -> None:
    """Says to the main process that a node's part of a checkpoint is stored in its folder, and has these files."""
    target.write_bytes(PART.format(number), json.dumps(files, indent=1).encode())


def collect_parts(target: Storage, numbers: Iterable[int], wait: Callable[[int], object]) -> Files:
    """The files of the parts of a checkpoint that nodes of these numbers store in its folder, once they have.

    `wait` is called with such a number again and again, until its part is there; what it raises ends the wait.
    """
    files: Files = {}
    for number in numbers:
        key = PART.format(number)
        while not target.exists(key):
            wait(number)
            time.sleep(POLL_S)
        files |= json.loads(target.read_bytes(key))
    return files


def delete_checkpoint(storage: Storage, name: str) -> None:
    """Deletes the files of a checkpoint that the journal of the run folder `storage` does not name."""
    storage.delete_tree(f"{CHECKPOINTS}/{name}", first=MANIFEST)


def enter(checkpoint: Checkpoint, writer: GroupWriter, retention: RetentionPolicy) -> None:
    """Enters a checkpoint, all of whose files are stored, in the journal, after its manifest is written.

    The same entry removes the checkpoints that the retention policy keeps no longer; their files are deleted after it.

    Raises:
        FencedError: another attempt has taken over, so it was not entered, and its files are deleted.
        StorageError: the storage does not accept it.
    """
    storage = writer.folder.storage
    manifest = json.dumps(asdict(checkpoint), indent=1)
    storage.write_bytes(f"{CHECKPOINTS}/{checkpoint.name}/{MANIFEST}", manifest.encode())
    for old in _append(checkpoint, writer, retention):
        delete_checkpoint(storage, old)


def _append(checkpoint: Checkpoint, writer: GroupWriter, retention: RetentionPolicy) -> list[str]:
    """Adds the entry of a checkpoint; gives the names of those that it removes."""
    removes: list[str] = []

    def decide(state: State) -> Entry | None:
        if state.has(checkpoint.name):
            return None
        surplus = retention.surplus([*state.checkpoints, checkpoint])
        removes[:] = [item.name for item in surplus if item.name != checkpoint.name]
        return {"kind": "checkpoint", "checkpoint": asdict(checkpoint), "removes": removes}

    try:
        writer.append(decide)
    except FencedError:
        if not writer.journal.read().has(checkpoint.name):
            delete_checkpoint(writer.folder.storage, checkpoint.name)
        raise
    return removes


def read_manifest(storage: Storage, name: str) -> Checkpoint:
    """The description in the folder of a checkpoint below `storage`, for one that is named by its URL.

    Raises:
        DamagedError: it has no manifest.
    """
    if not storage.exists(f"{name}/{MANIFEST}"):
        raise DamagedError(f"{storage.url(name)}: no {MANIFEST}, so it is not a complete checkpoint; name another")
    return Checkpoint(**json.loads(storage.read_bytes(f"{name}/{MANIFEST}")))


def description_of(checkpoint: Checkpoint) -> Checkpoint:
    """Its model without the weights: configs and processor."""
    return _with_files(model_of(checkpoint), lambda name: not _WEIGHTS.match(name))


def model_of(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint without what only training needs to go on: model, processor and scores."""
    return _with_files(checkpoint, lambda name: name not in TRAINING_STATE and not _SHARDS.fullmatch(name))


def for_ranks(checkpoint: Checkpoint, ranks: Collection[int]) -> Checkpoint:
    """A checkpoint without the shards of other ranks than these."""
    return _with_files(checkpoint, lambda name: not (owner := _OWNER.search(name)) or int(owner[1]) in ranks)


def _with_files(checkpoint: Checkpoint, is_kept: Callable[[str], bool]) -> Checkpoint:
    return replace(checkpoint, files={name: entry for name, entry in checkpoint.files.items() if is_kept(name)})


def fetch_undamaged(
    storage: Storage,
    checkpoints: Sequence[Checkpoint],
    choose: Callable[[Sequence[Checkpoint]], Checkpoint | None],
    fetch_one: Callable[[Checkpoint], None],
    leave_out: Callable[[Checkpoint, DamagedError], None],
) -> Checkpoint | None:
    """Fetches the checkpoint that is chosen, of trainings and of programs; where it is damaged, the next.

    Args:
        storage: The folder of the checkpoints.
        checkpoints: Those of the run.
        choose: Of those that are left.
        fetch_one: Copies one to this node, and raises DamagedError.
        leave_out: What is done with a damaged one.

    Returns:
        The one that was fetched; None where none is chosen.

    Raises:
        ResumeError: each one that was chosen is damaged.
        StorageError: the storage is not available.
    """
    left = list(checkpoints)
    while (chosen := choose(left)) is not None:
        try:
            fetch_one(chosen)
            return chosen
        except DamagedError as error:
            leave_out(chosen, error)
            left = [item for item in left if item.name != chosen.name]
    if damaged := len(checkpoints) - len(left):
        raise ResumeError(f"{storage.url()}: all {damaged} checkpoints are damaged; set another run.name to start over")
    return None


def fetch(storage: Storage, checkpoint: Checkpoint, local: Path) -> None:
    """Copies a checkpoint of the folder `storage` to this node, with the run's own weights that it names.

    Raises:
        DamagedError: a file is missing or changed.
        StorageError: the storage is not available; the checkpoint may be fine.
    """
    fetch_files(storage, checkpoint, local)
    fetch_base(storage, local)


def fetch_files(storage: Storage, checkpoint: Checkpoint, local: Path) -> None:
    """Copies the files of a checkpoint of the folder `storage` to this node and verifies each; raises as `fetch`."""
    for file, entry in checkpoint.files.items():
        key = f"{checkpoint.name}/{file}"
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise DamagedError(f"{storage.url(checkpoint.name)}: names the file {file}, outside of it; do not use it")
        if not storage.exists(key):
            raise DamagedError(f"{storage.url(key)}: is missing; name another checkpoint")
        if not is_fetched(storage, key, local / file, entry["sha256"]):
            raise DamagedError(f"{storage.url(key)}: differs from its SHA-256 in {MANIFEST}; name another checkpoint")


def is_fetched(storage: Storage, key: str, local: Path, sha256: str) -> bool:
    """Copies a file to this node; whether it has this SHA-256."""

    def is_intact() -> bool:
        storage.download_file(key, local)
        return sha256_of(local) == sha256

    # What went wrong on the way here must not take a good checkpoint out of the run.
    return is_intact() or is_intact()


def fetch_base(storage: Storage, local: Path, *, trains: bool = True) -> None:
    """Copies the run's own weights that a checkpoint names next to it here; nothing for one that names none.

    One that is trained on needs those that its loss compares it with, too.

    Raises:
        DamagedError: they are missing. Whether they are the right ones is seen when they are opened.
        StorageError: the storage is not available.
    """
    named = (BASE, ORIGINAL) if trains else (BASE,)
    base = next((local / file for file in named if (local / file).is_file()), None)
    name = json.loads(base.read_bytes())["folder"] if base is not None else None
    if name is None:
        return
    if not _BASE_FOLDER.fullmatch(name) or not storage.exists(f"{name}/{_BASE_COMPLETE}"):
        raise DamagedError(f"{storage.url(name)}: is missing, and the run began with it; put it back there")
    if not (local.parent / name).exists():
        storage.download_folder(name, local.parent / name)


def quarantine(writer: GroupWriter, name: str) -> None:
    """Takes a damaged checkpoint out of the run, so that it is neither resumed from nor chosen as the best again."""
    writer.append(lambda state: {"kind": "quarantined", "name": name} if state.has(name) else None)
    storage = writer.folder.storage.sub(f"{CHECKPOINTS}/{name}")
    if storage.exists(MANIFEST):
        storage.write_bytes(DAMAGED, storage.read_bytes(MANIFEST))
        storage.delete(MANIFEST)


def sweep(writer: GroupWriter) -> None:
    """Deletes what killed and stale groups left incomplete, which the journal cannot name any more.

    Listed first, compared with the journal after: a later group writes under names that did not exist while this one
    held the run, so that even a sweep that was paused in between deletes nothing of it.
    """
    storage = writer.folder.storage
    listed = storage.sub(CHECKPOINTS).list_folders()
    outputs = [key for attempt in storage.list_folders(ATTEMPTS) for key in storage.list_folders(attempt)]
    state = writer.check()
    for name in listed:
        own = name.endswith(f"-{writer.group.id}")
        if not own and not state.has(name) and name not in state.quarantined and _NAME.fullmatch(name):
            delete_checkpoint(storage, name)
    named = (writer.group.outputs, state.finished.outputs if state.finished is not None else None)
    for key in outputs:
        if _OUTPUTS.fullmatch(key) and key not in named:
            storage.delete_tree(key)


class Uploader:
    """Uploads staged checkpoints, or a node's parts of them, in a thread, one at a time; applies the retention policy.

    A new one is not accepted before the last is uploaded, so that a lost disk costs less than two save intervals. After
    each, `also` is called in the thread, with the uploaded checkpoint and the seconds that it took.
    """

    def __init__(self, writer: GroupWriter, retention: RetentionPolicy, also: Callable[[Checkpoint, float], None]):
        self._writer = writer
        self._retention = retention
        self._also = also
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def submit(self, staged: Path) -> None:
        """Starts to upload this one after the one before, whose FencedError or StorageError it raises."""
        self.wait()
        self._thread = threading.Thread(target=self._upload, args=(staged,), name="checkpoint-upload", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until what was submitted is uploaded, or raises its FencedError or StorageError."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _upload(self, staged: Path) -> None:
        began = time.monotonic()
        try:
            if read_staged(staged)[1].number > 0:
                upload_part(staged, self._writer)
                return
            checkpoint = upload_staged(staged, self._writer, self._retention)
            self._also(checkpoint, time.monotonic() - began)
        except Exception as error:
            self._error = error
