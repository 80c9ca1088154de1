"""The journal of a run: its history in one total order, and the only source that readers trust. Imports no torch.

journal/00000001.json, 00000002.json, … are each created by exactly one of the competing writers (by a hard link, or a
conditional PUT). A change is a compare-and-swap: read up to entry n, decide, create entry n + 1; if another writer has
created it first, read that entry and decide again. So an attempt that resumes after a pause finds that another has
taken over. The files that it wrote meanwhile are in no entry, so for every reader they do not exist.

    opened      {attempt, driver, experiment, takes_over, sealed}   a driver begins an attempt
    opened      {attempt, group, workers, sealed}                   a worker group of the attempt may write from now on
    resized     {attempt, group, step, from, to}                    from this step on the group trains with another
                                                                    number of workers than the group before
    prepared    {attempt, processor, mix}                           attempts/<k>/ has the files shown in the root
                                                                    (mix: shares and draws of joined sets)
    base        {attempt, folder, scores, conditions, weights}      the scores of the weights that the run begins with,
                                                                    by set, with hashes of what they depend on
    segments    {attempt, file}                                     the segments of training clips whose labels get
                                                                    timestamps
    checkpoint  {checkpoint, removes}                               a checkpoint is complete, and `removes` are deleted
    quarantined {name}                                              a checkpoint was found damaged
    finished    {attempt, outputs, files, result}                   the model and its scores, below `outputs`
    pushed      {outputs, model_id, repository, commit}             the model of these outputs was pushed to the Hub

`sealed` is how many bytes of each earlier group's metrics count. Each entry contains its own SHA-256.
"""

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainers.errors import ResumeError, StorageError
from trainers.run_folder.layout import (
    ATTEMPTS,
    CONFIG,
    ENVIRONMENT,
    EXPERIMENT,
    JOURNAL,
    OVERRIDES,
    QUARANTINE,
    RESULT,
    RunFolder,
    now,
)
from trainers.storage.json_files import finite, to_json

# Files of the newest prepared attempt that are copied to the root of the run folder.
REQUEST = (CONFIG, OVERRIDES, ENVIRONMENT, EXPERIMENT, QUARANTINE)
_PARALLEL_READS = 16
# Maximum size of an entry; that of a checkpoint with a thousand ranks has 150 KB.
MAX_ENTRY_BYTES = 16 << 20
_CHECKSUM = b', "sha256": "'
# Maximum pause after a lost race, so that many competing writers do not block each other.
_LONGEST_PAUSE_S = 0.05
# The position of a line of metrics among those of a run: its step, then its kind (from 0 to `KINDS` - 1).
Position = tuple[int, int]
KINDS = 3


@dataclass(frozen=True)
class Checkpoint:
    """The description of a checkpoint, known without opening it.

    Attributes:
        name: Name of its folder, checkpoint-<step>-a<attempt>-<worker group>.
        metrics: Scores on the validation set at this step.
        files: Size in bytes and SHA-256 of each file.
    """

    name: str
    step: int
    attempt: int
    metrics: dict[str, float]
    created: str
    files: dict[str, dict[str, Any]]

    @property
    def finite_metrics(self) -> dict[str, Any]:
        """Its metrics for JSON, with None in place of values that are not finite."""
        return {name: finite(value) for name, value in self.metrics.items()}


@dataclass(frozen=True)
class Group:
    """A worker group, which writes checkpoints and results until another group opens.

    Attributes:
        id: Distinguishes it from other groups of the attempt, which Ray Train starts after a failure.
        sealed_bytes: How many bytes of its metrics count; None for all complete lines, since it may still write.
        reason: Why it follows another group of its attempt; "" if it is the first, or the reason is not known.
    """

    attempt: int
    id: str
    sealed_bytes: int | None = None
    reason: str = ""

    @property
    def metrics_key(self) -> str:
        return f"{ATTEMPTS}/{self.attempt}/metrics-{self.id}.jsonl"

    @property
    def outputs(self) -> str:
        return f"{ATTEMPTS}/{self.attempt}/outputs-{self.id}"


@dataclass(frozen=True)
class Resize:
    """A change of the number of workers after `step` optimizer steps, and the attempt that trains with them."""

    step: int
    before: int
    after: int
    attempt: int


@dataclass(frozen=True)
class Base:
    """The scores of the weights that a run begins with.

    Attributes:
        folder: Folder in the run folder with evaluation/<name>.json and .jsonl.
        scores: Content of evaluation/<name>.json by name of the set.
        conditions: Hash of what the scores of each set depend on, besides the weights.
        weights: Hash that identifies the weights.
    """

    folder: str
    scores: Mapping[str, Mapping[str, Any]]
    conditions: Mapping[str, str]
    weights: str

    def to_json_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Finished:
    """The result of a run.

    Attributes:
        outputs: Folder in the run folder with model/, evaluation/, metrics.jsonl and result.json.
        result: Content of result.json.
    """

    attempt: int
    outputs: str
    files: tuple[str, ...]
    result: dict[str, Any]


@dataclass(frozen=True)
class Push:
    """A model that was pushed to the Hub.

    Attributes:
        outputs: The outputs with the model, see `Finished`.
        model_id: The requested repository, as OWNER/NAME or NAME.
    """

    outputs: str
    model_id: str
    repository: str
    commit: str


@dataclass(frozen=True)
class State:
    """The state of a run after all entries so far.

    Attributes:
        number: Number of the last entry; 0 without entries.
        attempt: Attempt of the last driver that opened; 0 before the first.
        driver: Unique id of that driver, the only driver that may write.
        group: The worker group that may write; None if a driver took over and no group has opened since.
        experiment: Id and description of the experiment, see `experiment.describe`.
        prepared: The attempt whose request is shown in the root of the run folder.
        processor: The attempt that holds a new model's processor; None if there is none.
        quarantined: Names of damaged checkpoints, whose files stay.
        groups: All worker groups of the experiment that were ever allowed to write, in order.
        workers: Number of workers that train; None if not known yet.
        base: Scores of the weights that the experiment begins with; None if it has none.
        segments: File in the run folder with the segments of training clips whose labels have timestamps, see
            `training.base.timed_labels`; None if there is none.
    """

    number: int = 0
    attempt: int = 0
    driver: str | None = None
    group: str | None = None
    experiment: dict[str, Any] | None = None
    prepared: int | None = None
    processor: int | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    quarantined: frozenset[str] = frozenset()
    groups: tuple[Group, ...] = ()
    finished: Finished | None = None
    workers: int | None = None
    resizes: tuple[Resize, ...] = ()
    pushes: tuple[Push, ...] = ()
    base: Base | None = None
    segments: str | None = None

    @property
    def has_begun(self) -> bool:
        """True if the run has something from which only the same experiment may continue."""
        return bool(self.checkpoints or self.quarantined) or self.finished is not None

    def has(self, name: str) -> bool:
        return any(item.name == name for item in self.checkpoints)


class Journal:
    """Reads and extends a run's journal; threads may share it. Entries are read only once.

    Refuses to read a journal longer than `most_bytes`, for readers with less memory than the writers.
    """

    def __init__(self, folder: RunFolder, *, most_bytes: int | None = None):
        self._storage, self._most_bytes = folder.storage.sub(JOURNAL), most_bytes
        self._state = State()
        self._lock = threading.Lock()

    def read(self) -> State:
        """Returns the state after all entries up to now.

        Raises:
            ResumeError: an entry is of an unknown kind, or the journal is too long.
            StorageError: the storage is not available.
        """
        with self._lock:
            return self._read()

    def append(self, decide: Callable[[State], Mapping[str, Any] | None]) -> State:
        """Adds the entry that `decide` returns for exactly the state that the entry follows; adds nothing for None.

        `decide` may raise, and is called again whenever another entry came first. Returns the state after the entry.
        """
        with self._lock:
            while True:
                state = self._read()
                entry = decide(state)
                if entry is None:
                    return state
                number = state.number + 1
                content = to_json({"number": number, "at": now(), **entry}, _key(number)).encode()
                # Its own SHA-256 is the last key.
                content = content[:-1] + _CHECKSUM + hashlib.sha256(content).hexdigest().encode() + b'"}'
                if self._storage.create_exclusive(_key(number), content):
                    self._state = fold(state, json.loads(content))
                    return self._state
                time.sleep(random.uniform(0.0, _LONGEST_PAUSE_S))

    def _read(self) -> State:
        if self._state.number == 0:
            for entry in self.entries():
                self._state = fold(self._state, entry)
        while self._storage.exists(_key(number := self._state.number + 1)):
            self._state = fold(self._state, self._read_entry(number))
        return self._state

    def entries(self) -> Iterator[Any]:
        """Yields all entries that a listing shows without a gap, in order, with parallel reads; raises as `read`."""
        listed = {entry.key: entry.size_bytes for entry in self._storage.list_files()}
        last = 0
        while _key(last + 1) in listed:
            last += 1
        size = sum(listed[_key(number)] for number in range(1, last + 1))
        if self._most_bytes is not None and size > self._most_bytes:
            raise ResumeError(f"the run's journal has {size} bytes, more than the limit of {self._most_bytes}")
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            for start in range(1, last + 1, _PARALLEL_READS):
                yield from pool.map(self._read_entry, range(start, min(start + _PARALLEL_READS, last + 1)))

    def _read_entry(self, number: int) -> Any:
        return _parsed(number, self._storage.read_small(_key(number), MAX_ENTRY_BYTES))


def _parsed(number: int, content: bytes) -> Any:
    try:
        entry = json.loads(content)
    except ValueError:
        entry = None
    known = entry if isinstance(entry, Mapping) else {}
    expected = hashlib.sha256(content.rpartition(_CHECKSUM)[0] + b"}").hexdigest()
    if entry is None or known.get("number", number) != number or known.get("sha256") != expected:
        raise ResumeError(
            f"entry {number} of the run's journal is damaged, or another program has written it: put back "
            f"{JOURNAL}/{_key(number)} from a copy, or give the run another name"
        )
    return entry


def fold(state: State, entry: Mapping[str, Any]) -> State:
    """Returns the state after one more entry. Pure.

    Raises:
        ResumeError: the entry is of an unknown kind, or lacks a field of its kind.
    """
    kind = entry.get("kind") if isinstance(entry, Mapping) else None
    if kind not in _FOLDS:
        raise ResumeError(
            f"entry {state.number + 1} of the run's journal is of the unknown kind {kind!r}: a newer Rayscribe "
            "wrote it; continue the run with that version"
        )
    try:
        return replace(_FOLDS[kind](state, entry), number=entry["number"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ResumeError(
            f"entry {state.number + 1} of the run's journal is not a valid entry of the kind {kind!r} "
            f"({type(error).__name__}: {error}): another program has written it; give the run another name"
        ) from error


def _opened(state: State, entry: Mapping[str, Any]) -> State:
    sealed = entry["sealed"]
    groups = tuple(replace(item, sealed_bytes=sealed.get(item.id, item.sealed_bytes)) for item in state.groups)
    if "group" in entry:
        # A changed number of workers is recorded later, once the step is known.
        workers = state.workers if state.workers is not None else entry.get("workers")
        opened = Group(entry["attempt"], entry["group"], reason=str(entry.get("reason", "")))
        return replace(state, group=entry["group"], groups=(*groups, opened), workers=workers)
    known = state.experiment is not None and state.experiment["id"] == entry["experiment"]["id"]
    return replace(
        state,
        attempt=entry["attempt"],
        driver=entry["driver"],
        group=None if entry["takes_over"] else state.group,
        # Metrics of another experiment do not count for this one; its groups have ended, see `Driver.open`.
        groups=groups if known else (),
        experiment=entry["experiment"],
        # The processor of another experiment has other sizes.
        processor=state.processor if known else None,
        # Another experiment begins with its own number of workers.
        workers=state.workers if known else None,
        resizes=state.resizes if known else (),
        base=state.base if known else None,
        segments=state.segments if known else None,
    )


def _resized(state: State, entry: Mapping[str, Any]) -> State:
    resize = Resize(entry["step"], entry["from"], entry["to"], entry["attempt"])
    return replace(state, workers=resize.after, resizes=(*state.resizes, resize))


def _prepared(state: State, entry: Mapping[str, Any]) -> State:
    return replace(state, prepared=entry["attempt"], processor=entry["processor"])


def _base(state: State, entry: Mapping[str, Any]) -> State:
    return replace(state, base=Base(**{name: entry[name] for name in ("folder", "scores", "conditions", "weights")}))


def _segments(state: State, entry: Mapping[str, Any]) -> State:
    return replace(state, segments=entry["file"])


def _checkpoint(state: State, entry: Mapping[str, Any]) -> State:
    removed = set(entry["removes"])
    items = [*(item for item in state.checkpoints if item.name not in removed), Checkpoint(**entry["checkpoint"])]
    return replace(state, checkpoints=tuple(sorted(items, key=lambda item: (item.step, item.created))))


def _quarantined(state: State, entry: Mapping[str, Any]) -> State:
    stay = tuple(item for item in state.checkpoints if item.name != entry["name"])
    return replace(state, checkpoints=stay, quarantined=state.quarantined | {entry["name"]})


def _finished(state: State, entry: Mapping[str, Any]) -> State:
    files = tuple(entry["files"])
    return replace(state, finished=Finished(entry["attempt"], entry["outputs"], files, entry["result"]))


def _pushed(state: State, entry: Mapping[str, Any]) -> State:
    push = Push(entry["outputs"], entry["model_id"], entry["repository"], entry["commit"])
    return replace(state, pushes=(*state.pushes, push))


_FOLDS: dict[Any, Callable[[State, Mapping[str, Any]], State]] = {
    "opened": _opened,
    "resized": _resized,
    "prepared": _prepared,
    "base": _base,
    "segments": _segments,
    "checkpoint": _checkpoint,
    "quarantined": _quarantined,
    "finished": _finished,
    "pushed": _pushed,
}


def publish(folder: RunFolder, journal: Journal) -> None:
    """Copies the files that the journal names to the root, for people, result.json last. Safe to repeat.

    An attempt that is paused here, and resumes after another has finished, may overwrite a file with outdated content.
    So every publisher reads the journal before each file and after the last one, and continues until the root has the
    files that the journal names. Programs read through the journal, and never see a state between two files.

    Raises:
        StorageError: the storage does not accept it.
    """
    done: dict[str, str] = {}
    while missing := [(key, source) for key, source in _sources(journal.read()).items() if done.get(key) != source]:
        key, source = missing[0]
        try:
            folder.storage.copy_file(source, key)
        except StorageError:
            # A later attempt may have deleted the file after storing its own results.
            if _sources(journal.read()).get(key) == source:
                raise
        else:
            done[key] = source


def _sources(state: State) -> dict[str, str]:
    """Returns the source of each file in the root, in the order of copying."""
    sources = {name: f"{ATTEMPTS}/{state.prepared}/{name}" for name in REQUEST} if state.prepared is not None else {}
    if state.finished is not None:
        files = sorted(state.finished.files, key=lambda name: (name == RESULT, name))
        sources.update({name: f"{state.finished.outputs}/{name}" for name in files})
    return sources


def accepted_metrics(folder: RunFolder, state: State, *, most_bytes: int | None = None) -> bytes:
    """Returns all lines of metrics that count, by worker group; reads at most `most_bytes` of each group."""
    return b"".join(
        complete_lines(folder, group.metrics_key, most_bytes=most_bytes)[: group.sealed_bytes]
        for group in state.groups
        if group.sealed_bytes != 0
    )


def deduplicate(metrics: bytes) -> bytes:
    """Returns lines of metrics by step, with each loss and score once: from the last worker group that reached it.

    A killed group may have trained beyond its last checkpoint.
    """
    kept: dict[Position, bytes] = {}
    for line in metrics.splitlines(keepends=True):
        try:
            content = json.loads(line)
        except ValueError:
            # A full disk may have truncated the line before the next one was written.
            continue
        kept[position_of(content)] = line
    # Sorted, since a group may begin from a staged checkpoint at a later step than the metrics of the group before.
    return b"".join(kept[key] for key in sorted(kept))


def position_of(line: Mapping[str, Any]) -> Position:
    """Returns the position of a line of metrics; at each step, losses come first, then scores, then test scores."""
    return line["step"], 2 if "test_wer" in line else int("eval_wer" in line)


def complete_lines(folder: RunFolder, key: str, *, most_bytes: int | None = None) -> bytes:
    """Returns the content of a file, or its first `most_bytes`, up to the last line feed; empty if there is no file."""
    storage = folder.storage
    if not storage.exists(key):
        return b""
    content = storage.read_bytes(key) if most_bytes is None else storage.read_part(key, 0, most_bytes)
    return content[: content.rfind(b"\n") + 1]


def _key(number: int) -> str:
    return f"{number:08d}.json"
