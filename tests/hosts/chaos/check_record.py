"""Checks the record of a chaos campaign: `python -m tests.hosts.chaos.check_record RECORD`. Pure but for reading it.

The record is JSON lines, in the order in which they were written:

    campaign   {seed, failures, scored}            `scored`: ids of the test set
    failure    {number, name, run, at_s}           what was done, to which run
    drivers    {run, attempts}                     attempts whose drivers were alive at one moment
    run        {run, state, reason, causes, weights, undisturbed, finished, journal, scores}
    storage    {requests}                          [method, key, status] of every request for a checkpoint's files
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

MANIFEST = "MANIFEST.json"
WENT_WELL = range(200, 300)

Line = Mapping[str, Any]


def problems(lines: Sequence[Line]) -> list[str]:
    """What is wrong with a campaign; empty where nothing is."""
    (campaign,) = [line for line in lines if line["kind"] == "campaign"]
    runs = [line for line in lines if line["kind"] == "run"]
    done = sum(line["kind"] == "failure" for line in lines)
    found = [f"{done} failures of {campaign['failures']}"] if done != campaign["failures"] else []
    for run in runs:
        found += [*_state(run), *_scores(run, campaign["scored"]), *_order(run)]
    for line in lines:
        if line["kind"] == "drivers" and len(line["attempts"]) > 1:
            found.append(f"{line['run']}: the attempts {line['attempts']} ran beside each other")
        if line["kind"] == "storage":
            found += _reads(line["requests"])
    without = {line["run"] for line in lines if line["kind"] == "failure"} - {run["run"] for run in runs}
    return found + [f"{name}: its end is not in the record" for name in sorted(without)]


def _state(run: Line) -> list[str]:
    """Each failure is one that a run survives: it succeeded, with the weights of an undisturbed one."""
    name, state = run["run"], run["state"]
    if state != "SUCCEEDED":
        return [f"{name}: {state} ({run['reason']})"]
    right = run["finished"] and run["weights"] == run["undisturbed"] and run["causes"][-1] == "SUCCEEDED"
    return [] if right else [f"{name}: SUCCEEDED without the undisturbed run's weights"]


def _scores(run: Line, expected: Sequence[str]) -> list[str]:
    """Each row of the test set is scored once."""
    counts: Counter[str] = Counter(run["scores"])
    if run["state"] == "SUCCEEDED" and counts != Counter(expected):
        wrong = sorted({*counts, *expected} - {name for name in expected if counts[name] == 1})
        return [f"{run['run']}: not scored once: {', '.join(wrong)}"]
    return []


def _order(run: Line) -> list[str]:
    """After an attempt has opened, the journal has nothing of an earlier one."""
    attempts = [entry["attempt"] for entry in run["journal"] if entry["attempt"] is not None]
    late = [f"{after} after {before}" for before, after in pairwise(attempts) if after < before]
    return [f"{run['run']}: its journal has an entry of attempt {late[0]}"] if late else []


def _reads(requests: Iterable[Sequence[Any]]) -> list[str]:
    """No file of a checkpoint was read before its manifest was written."""
    whole, found = set(), []
    for method, key, status in requests:
        folder, _, file = key.rpartition("/")
        if status not in WENT_WELL:
            continue
        if method == "PUT" and file == MANIFEST:
            whole.add(folder)
        elif method == "DELETE" and file == MANIFEST:
            whole.discard(folder)
        elif method == "GET" and folder not in whole:
            found.append(f"{key} was read before its checkpoint had a manifest")
    return found


def main(path: str) -> int:
    """Prints what is wrong, or what was done."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    found = problems(lines)
    for text in found:
        print(text)
    counts = Counter(line["name"] for line in lines if line["kind"] == "failure")
    states = Counter(line["state"] for line in lines if line["kind"] == "run")
    seed = next(line["seed"] for line in lines if line["kind"] == "campaign")
    print(f"seed {seed} · {dict(counts)} · runs {dict(states)} · {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
