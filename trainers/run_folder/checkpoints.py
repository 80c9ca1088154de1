"""Checkpoints of a run, which are uploaded during training, retained by score over all attempts, and verified.

Training completes a checkpoint on the node's own disk (`staging.stage`). A thread (`Uploader`) copies its files to the
run folder, then MANIFEST.json with sizes and SHA-256, and finally adds the checkpoint to the journal. The next worker
on a node uploads checkpoints that a killed process left in staging (`resume.take_over`), so that a kill during an
upload loses no step. A damaged checkpoint is quarantined.
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
# Lists the files of a checkpoint that a node without the main process has stored; the manifest has them too.
PART = "PART-{}.json"
POLL_S = 0.2
# Name of the manifest of a quarantined checkpoint, whose files stay for inspection.
DAMAGED = "DAMAGED.json"
# Has the lines of metrics up to the checkpoint's step that were not yet in the run folder's storage.
UNWRITTEN_METRICS = "unwritten-metrics.jsonl"
# Files that are needed only to continue training; the optimizer's is twice as large as the model.
TRAINING_STATE = {"optimizer.pt", "scheduler.pt", "scaler.pt", "trainer_state.json", "original.json", UNWRITTEN_METRICS}
# BASE, in an adapter's checkpoint, identifies the base weights. ORIGINAL, in checkpoints of models whose loss compares
# them with the initial weights, identifies the initial weights. If these are the run's own, `folder` in these files is
# their folder, next to the checkpoints.
BASE, ORIGINAL = "base.json", "original.json"
# The file of such a folder that is written last.
_BASE_COMPLETE = "config.json"
_BASE_FOLDER = re.compile(r"base-[0-9a-f]{16}")
_WEIGHTS = re.compile(rf"(adapter_)?model.*\.safetensors|pytorch_model.*\.bin|adapter_config\.json|{re.escape(BASE)}")
# Files of DeepSpeed: each rank's shard, the name of the current step's folder, and programs that merge shards.
_DEEPSPEED = r"global_step\d+/.*|latest|zero_to_\w+\.py"
# Files of FSDP2: each rank's shards, and their metadata.
_FSDP = r"(pytorch_model_fsdp|optimizer)(_0/.*|\.bin)"
_SHARDS = re.compile(f"{_DEEPSPEED}|{_FSDP}")
# The rank that a shard belongs to.
_OWNER = re.compile(r"zero_pp_rank_(\d+)_")
_OUTPUTS = re.compile(rf"{ATTEMPTS}/\d+/outputs-\w+")
_NAME = re.compile(r"checkpoint-\d+-a\d+-\w+(-\w+)?")
# Metric of a validation: 1 if checkpoint.refuse_if refuses the checkpoint.
REFUSED = "eval_refused"
# Size in bytes and SHA-256 of files, by name.
Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RetentionPolicy:
    """Decides which checkpoints are kept, see `run_part.CheckpointPart`."""

    num_to_keep: int | None
    score_attribute: str
    score_order: Literal["min", "max"] = "min"

    def best(self, checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
        """Returns the checkpoint with the best score, of ties the newest; None if no checkpoint has a score."""
        return next(iter(self.ranked(checkpoints)), None)

    def surplus(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Returns the checkpoints to delete: all but the best ones and the newest, from which training would resume."""
        if self.num_to_keep is None or not checkpoints:
            return []
        # Programs may not report any scores.
        ranked = self.ranked(checkpoints) or sorted(checkpoints, key=lambda item: item.step, reverse=True)
        stays = {item.name for item in ranked[: self.num_to_keep]}
        last = newest(checkpoints)
        return [item for item in checkpoints if item.name not in stays and item != last]

    def ranked(self, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Returns the checkpoints that may be the best, the best first."""
        # A checkpoint that was saved on a stop request has no score, and a program's checkpoint may have a score that
        # is not finite. Neither is ever the best, nor is a checkpoint that checkpoint.refuse_if refuses.
        passed = [item for item in checkpoints if not item.metrics.get(REFUSED)]
        scored = [item for item in passed if item.finite_metrics.get(self.score_attribute) is not None]
        sign = -1 if self.score_order == "max" else 1
        return sorted(scored, key=lambda item: (sign * item.metrics[self.score_attribute], -item.step, item.created))


def refused_only(checkpoints: Collection[Checkpoint]) -> bool:
    """Returns True if there are checkpoints, and checkpoint.refuse_if refuses all of them."""
    return bool(checkpoints) and all(item.metrics.get(REFUSED) for item in checkpoints)


def newest(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Returns the checkpoint with the most steps, of ties the last created; None if there are no checkpoints."""
    ordered = sorted(checkpoints, key=lambda item: (item.step, item.created))
    return ordered[-1] if ordered else None


def list_checkpoints(folder: RunFolder, *, most_bytes: int | None = None) -> list[Checkpoint]:
    """Returns all checkpoints in a run's journal, by step; see Journal for `most_bytes`."""
    return list(Journal(folder, most_bytes=most_bytes).read().checkpoints)


def upload_staged(staged: Path, writer: GroupWriter, retention: RetentionPolicy) -> Checkpoint:
    """Uploads a staged checkpoint, or its first part, and adds it to the journal; then deletes the staged files."""
    checkpoint, part = _of_this_group(staged, writer)

    def others(target: Storage) -> Files:
        return collect_parts(target, range(1, part.total), lambda _: writer.check())

    complete = upload(checkpoint, staged, writer, retention, others)
    shutil.rmtree(staged)
    return complete


def upload_part(staged: Path, writer: GroupWriter) -> None:
    """Uploads another part of a checkpoint, and keeps its staged files. Raises as `upload`."""
    writer.check()
    checkpoint, part = _of_this_group(staged, writer)
    target = writer.folder.storage.sub(f"{CHECKPOINTS}/{checkpoint.name}")
    enter_part(target, part.number, store_files(staged, checkpoint.files, target))


def _of_this_group(staged: Path, writer: GroupWriter) -> tuple[Checkpoint, NodePart]:
    """Returns a staged checkpoint; gives another group's checkpoint a name of this group, equal for all its parts."""
    checkpoint, part = read_staged(staged)
    if not checkpoint.name.endswith(f"-{writer.group.id}"):
        # Scores of this group are finite; those of another group may not be.
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
    """Stores a checkpoint of a training or a program; adds it to the journal once all nodes have stored their parts.

    `checkpoint` is as in the journal, except that its files are only the names of this node's files, in `local`.
    `others` waits until the files of other nodes are in the given folder, and returns them, see `collect_parts`; if it
    raises, the checkpoint is not added. For `retention` see `enter`.

    Raises:
        FencedError: another attempt has taken over, so the checkpoint was not added.
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
    """Copies files of a local folder to the folder of a checkpoint; returns their sizes and SHA-256."""
    stored = {}
    for name in sorted(files):
        stored[name] = {"size_bytes": (local / name).stat().st_size, "sha256": sha256_of(local / name)}
        target.upload_file(local / name, name)
    return stored


def enter_part(target: Storage, number: int, files: Files) -> None:
    """Tells the main process that a node's part of a checkpoint is stored, and which files it has."""
    target.write_bytes(PART.format(number), json.dumps(files, indent=1).encode())


def collect_parts(target: Storage, numbers: Iterable[int], wait: Callable[[int], object]) -> Files:
    """Waits for the parts of a checkpoint that nodes with these numbers store; returns the parts' files.

    `wait` is called repeatedly with a number until its part exists; an error that `wait` raises ends the wait.
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
    """Deletes the files of a checkpoint that is not in the journal of the run folder `storage`."""
    storage.delete_tree(f"{CHECKPOINTS}/{name}", first=MANIFEST)


def enter(checkpoint: Checkpoint, writer: GroupWriter, retention: RetentionPolicy) -> None:
    """Writes the manifest of a checkpoint whose files are stored, and adds the checkpoint to the journal.

    The same entry removes the checkpoints that the retention policy no longer keeps; then their files are deleted.

    Raises:
        FencedError: another attempt has taken over, so the checkpoint was not added, and its files are deleted.
        StorageError: the storage does not accept it.
    """
    storage, removes = writer.folder.storage, list[str]()
    manifest = json.dumps(asdict(checkpoint), indent=1)
    storage.write_bytes(f"{CHECKPOINTS}/{checkpoint.name}/{MANIFEST}", manifest.encode())

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
            delete_checkpoint(storage, checkpoint.name)
        raise
    for old in removes:
        delete_checkpoint(storage, old)


def read_manifest(storage: Storage, name: str) -> Checkpoint:
    """Reads the manifest in the folder of a checkpoint below `storage`; raises DamagedError if there is none."""
    if not storage.exists(f"{name}/{MANIFEST}"):
        raise DamagedError(f"{storage.url(name)}: no {MANIFEST}, so it is not a complete checkpoint; use another")
    return Checkpoint(**json.loads(storage.read_bytes(f"{name}/{MANIFEST}")))


def description_of(checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint with only the model's configs and processor."""
    return _with_files(model_of(checkpoint), lambda name: not _WEIGHTS.match(name))


def model_of(checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint with only model, processor and scores, without the files that only training needs."""
    return _with_files(checkpoint, lambda name: name not in TRAINING_STATE and not _SHARDS.fullmatch(name))


def for_ranks(checkpoint: Checkpoint, ranks: Collection[int]) -> Checkpoint:
    """Returns a checkpoint without the shards of other ranks."""
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
    """Fetches the chosen checkpoint of a training or a program; while it is damaged, chooses again without it.

    `storage` is the folder of the run's `checkpoints`. `choose` chooses among the rest; if it returns None, so does
    this function. `fetch_one` copies a checkpoint to this node; if it raises DamagedError, `leave_out` is called.

    Raises:
        ResumeError: all chosen checkpoints are damaged.
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
    """Copies a checkpoint of the folder `storage` to this node, with the run's own weights on which it depends.

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
            raise DamagedError(f"{storage.url(key)}: is missing; use another checkpoint")
        if not is_fetched(storage, key, local / file, entry["sha256"]):
            raise DamagedError(f"{storage.url(key)}: differs from its SHA-256 in {MANIFEST}; use another checkpoint")


def is_fetched(storage: Storage, key: str, local: Path, sha256: str) -> bool:
    """Copies a file to this node; returns True if it has this SHA-256."""

    def is_intact() -> bool:
        storage.download_file(key, local)
        return sha256_of(local) == sha256

    # Retried, so that a transfer error does not remove a good checkpoint from the run.
    return is_intact() or is_intact()


def fetch_base(storage: Storage, local: Path, *, trains: bool = True) -> None:
    """Copies the run's own weights on which a local checkpoint depends, if any, to the folder next to it.

    With `trains`, also copies the weights with which the loss compares the model. Raises DamagedError if weights are
    missing; their content is checked when they are opened.
    """
    named = (BASE, ORIGINAL) if trains else (BASE,)
    base = next((local / file for file in named if (local / file).is_file()), None)
    name = json.loads(base.read_bytes())["folder"] if base is not None else None
    if name is None:
        return
    if not _BASE_FOLDER.fullmatch(name) or not storage.exists(f"{name}/{_BASE_COMPLETE}"):
        raise DamagedError(f"{storage.url(name)}: is missing, and the run began with it; restore it")
    if not (local.parent / name).exists():
        storage.download_folder(name, local.parent / name)


def quarantine(writer: GroupWriter, name: str) -> None:
    """Removes a damaged checkpoint from the run, so that it is never resumed from or chosen as the best."""
    writer.append(lambda state: {"kind": "quarantined", "name": name} if state.has(name) else None)
    storage = writer.folder.storage.sub(f"{CHECKPOINTS}/{name}")
    if storage.exists(MANIFEST):
        storage.write_bytes(DAMAGED, storage.read_bytes(MANIFEST))
        storage.delete(MANIFEST)


def sweep(writer: GroupWriter) -> None:
    """Deletes incomplete files of killed and stale groups, which can no longer be added to the journal.

    Lists the files before it reads the journal. A later group writes under names that do not exist until this group is
    fenced, so even a sweep that is paused in between deletes none of the later group's files.
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

    The next checkpoint is accepted only after the last is uploaded, so that a lost disk costs less than two save
    intervals. After each upload, `also` is called in the thread with the checkpoint and the upload time in seconds.
    """

    def __init__(self, writer: GroupWriter, retention: RetentionPolicy, also: Callable[[Checkpoint, float], None]):
        self._writer, self._retention, self._also = writer, retention, also
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def submit(self, staged: Path) -> None:
        """Waits for the previous upload, and raises its FencedError or StorageError; then starts an upload."""
        self.wait()
        self._thread = threading.Thread(target=self._upload, args=(staged,), name="checkpoint-upload", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until the submitted checkpoint is uploaded; raises its FencedError or StorageError."""
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
