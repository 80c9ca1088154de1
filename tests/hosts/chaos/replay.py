"""A run's requests to the storage, replayed in their order next to the entries of its journal. Pure.

journal/<n>.json                            PUT: from here on, entry n counts
checkpoints/<name>/<file>                   PUT, GET, DELETE: a checkpoint is whole while it has its manifest
attempts/<k>/metrics-<group>.jsonl          PUT: attempt k reports a step, or a score on the validation set
attempts/<k>/outputs-<group>/evaluation/test.jsonl      PUT: attempt k has scored the rows of the test set
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MANIFEST = "MANIFEST.json"
METHODS = ("GET", "PUT", "DELETE")
WENT_WELL = range(200, 300)
_ENTRY = re.compile(r"journal/(\d+)\.json")
_CHECKPOINT = re.compile(r"checkpoints/(checkpoint-[^/]+)/(.+)")
_REPORT = re.compile(r"attempts/(\d+)/metrics-\w+\.jsonl")
_SCORING = re.compile(r"attempts/(\d+)/outputs-\w+/evaluation/test\.jsonl")
_REPLAYED = (_ENTRY, _CHECKPOINT, _REPORT, _SCORING)

Entry = Mapping[str, Any]
# Method, key below the folder of all runs, status.
Request = Sequence[Any]


def replayed(requests: Iterable[Request], folder: str) -> list[tuple[str, str, int]]:
    """The requests that a replay needs, with keys below the folder of all runs.

    Args:
        requests: Method, path and status of all.
        folder: Path of that folder, as `/bucket/runs/`.
    """
    found = []
    for method, path, status in requests:
        key = path.removeprefix(folder)
        _, _, rest = key.partition("/")
        if method in METHODS and key != path and any(pattern.fullmatch(rest) for pattern in _REPLAYED):
            found.append((method, key, status))
    return found


def summary_of(entry: Entry) -> dict[str, Any]:
    """What the record has of an entry of a journal."""
    own = {name: entry[name] for name in ("attempt", "group", "outputs") if entry.get(name) is not None}
    checkpoint = {"checkpoint": entry["checkpoint"]["name"]} if "checkpoint" in entry else {}
    return {"entry": entry["kind"], **own, **checkpoint}


def groups_of(journal: Iterable[Entry]) -> dict[str, int]:
    """The attempt of each worker group that has opened."""
    return {item["group"]: item["attempt"] for item in journal if item["entry"] == "opened" and "group" in item}


def writer_of(entry: Entry, groups: Mapping[str, int]) -> int | None:
    """The attempt that wrote an entry; None where it does not say.

    Args:
        entry: The entry.
        groups: See `groups_of`.
    """
    if entry["entry"] == "checkpoint":
        return groups.get(uploader_of(entry["checkpoint"]))
    return entry.get("attempt")


def uploader_of(checkpoint: str) -> str:
    """The worker group that has uploaded a checkpoint, by its name.

    checkpoint-<step>-a<attempt>-<group>, and after that the group that has uploaded it for a killed one.
    """
    return checkpoint.rpartition("-")[2]


def is_trained(entry: Entry) -> bool:
    """Whether an entry is of a checkpoint that the group that entered it has trained itself."""
    return entry["entry"] == "checkpoint" and str(entry["checkpoint"]).count("-") == 3


class Replay:
    """A run as its storage saw it.

    Attributes:
        found: What is wrong.
    """

    def __init__(self, run: str, journal: Sequence[Entry], *, may_repeat: bool):
        """Begins before the first request.

        Args:
            run: Its name.
            journal: All its entries, see `summary_of`.
            may_repeat: Whether a request may have taken effect twice, as where the answer to the first was lost.
        """
        self.found: list[str] = []
        self._run, self._journal, self._may_repeat = run, journal, may_repeat
        self._groups = groups_of(journal)
        self._entries = 0
        # Of the last driver that opened.
        self._attempt = 0
        self._whole: set[str] = set()
        self._has_checkpoints = self._resumes = self._has_read = self._has_reported = self._has_finished = False
        # How often each attempt has stored each of its scorings.
        self._scorings: dict[int, Counter[str]] = {}

    def take(self, method: str, key: str) -> None:
        """The next request that went well; its key is one below the run's folder."""
        if (entry := _ENTRY.fullmatch(key)) is not None and method == "PUT":
            self._enter(int(entry[1]))
        elif (checkpoint := _CHECKPOINT.fullmatch(key)) is not None:
            self._touch(method, key, checkpoint[1], checkpoint[2])
        elif (report := _REPORT.fullmatch(key)) is not None and method == "PUT":
            self._has_reported = True
            self._write(int(report[1]), key)
        elif (scoring := _SCORING.fullmatch(key)) is not None and method == "PUT":
            self._score(int(scoring[1]), key)

    def end(self) -> None:
        """After the last request."""
        if self._entries < len(self._journal):
            self._note(f"entry {self._entries + 1} of its journal is not among the storage's requests")

    def _note(self, problem: str) -> None:
        text = f"{self._run}: {problem}"
        if text not in self.found:
            self.found.append(text)

    def _enter(self, number: int) -> None:
        if number != self._entries + 1 or number > len(self._journal):
            self._note(f"entry {number} of its journal was created after entry {self._entries}")
            return
        self._entries, entry = number, self._journal[number - 1]
        kind = entry["entry"]
        if kind == "opened" and "group" in entry:
            self._resumes, self._has_read = self._has_checkpoints, False
        elif kind == "opened":
            self._attempt = entry["attempt"]
        elif kind == "checkpoint":
            self._enter_checkpoint(entry)
        elif kind == "finished":
            self._finish(entry)
        elif kind == "quarantined":
            self._note("a checkpoint was found damaged")

    def _enter_checkpoint(self, entry: Entry) -> None:
        name = entry["checkpoint"]
        if name not in self._whole:
            self._note(f"{name} was entered without a manifest")
        if is_trained(entry) and self._resumes:
            if not self._has_read:
                self._note(f"attempt {self._attempt} went on, but no checkpoint was read for it")
            self._resumes = False
        self._has_checkpoints = True

    def _finish(self, entry: Entry) -> None:
        self._has_finished = True
        if not self._has_read:
            self._note("it has finished, but no checkpoint was read for its result")
        if not self._has_reported:
            self._note("it has finished, but no step was reported")
        scored = self._scorings.get(entry["attempt"], Counter())
        if f"{entry['outputs']}/evaluation/test.jsonl" not in scored:
            self._note("it has finished, but no score of the attempt that finished it was stored")

    def _touch(self, method: str, key: str, name: str, file: str) -> None:
        if method == "GET":
            self._has_read = True
            if name not in self._whole:
                self._note(f"{key} was read before its checkpoint had a manifest")
        elif method == "PUT":
            if file == MANIFEST:
                self._whole.add(name)
            attempt = self._groups.get(uploader_of(name))
            if attempt is None:
                self._note(f"{name} was written by a worker group that has not opened")
            else:
                self._write(attempt, key)
        elif file == MANIFEST:
            self._whole.discard(name)

    def _score(self, attempt: int, key: str) -> None:
        self._write(attempt, key)
        if self._has_finished:
            self._note(f"attempt {attempt} scored the test set after the run had finished")
        times = self._scorings.setdefault(attempt, Counter())
        times[key] += 1
        if len(times) > 1 or (times[key] > 1 and not self._may_repeat):
            self._note(f"attempt {attempt} scored the test set more than once")

    def _write(self, attempt: int, key: str) -> None:
        # It may live on where it is cut off, but may not train.
        if attempt < self._attempt:
            self._note(f"attempt {attempt} trained after attempt {self._attempt} had opened: it wrote {key}")
        elif attempt > self._attempt:
            self._note(f"attempt {attempt} trained before it had opened: it wrote {key}")
