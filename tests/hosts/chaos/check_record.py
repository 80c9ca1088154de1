"""Checks the record of a chaos campaign: `python -m tests.hosts.chaos.check_record RECORD`. Pure but for reading it.

The record is JSON lines, in the order in which they were written:

    campaign   {seed, failures, scored}            `scored`: ids of the test set
    failure    {number, name, run, at_s}           what was done, to which run
    drivers    {run, attempts}                     attempts whose drivers were alive at one moment
    workers    {run, attempts}                     attempts whose training workers were, on any host
    run        {run, state, reason, causes, weights, undisturbed, journal, scores}
                                                   `journal`: its entries, see `replay.summary_of`
    storage    {requests}                          [method, key, status] of each that `replay` needs, of all runs

It must show that every run ended in a true state, that no checkpoint was read before its manifest was written, that no
row was scored twice, and that no attempt trained at the same time as its successor. A record that lacks what would
show it, fails.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.hosts.chaos.replay import WENT_WELL, Replay, groups_of, is_trained, writer_of

# Failures after which an answer of the storage may be lost, so that the request is repeated.
OUTAGES = ("cut a host off", "cut the storage off")

Line = Mapping[str, Any]


def problems(lines: Sequence[Line]) -> list[str]:
    """What is wrong with a campaign; empty where nothing is."""
    campaigns, runs, storages = (of_kind(lines, kind) for kind in ("campaign", "run", "storage"))
    found = [
        f"the record has {len(items)} lines {kind}, not one"
        for kind, items in (("campaign", campaigns), ("storage", storages))
        if len(items) != 1
    ]
    for campaign in campaigns:
        found += _campaign(campaign, len(of_kind(lines, "failure")))
        for run in runs:
            found += _scores(run, campaign["scored"])
    for run in runs:
        found += [*_state(run), *_order(run), *_looks(run, lines)]
    for line in of_kind(lines, "drivers"):
        if len(line["attempts"]) > 1:
            found.append(f"{line['run']}: the attempts {line['attempts']} ran at the same time")
    for storage in storages:
        hit = {line["run"] for line in of_kind(lines, "failure") if line["name"] in OUTAGES}
        found += _requests(runs, storage["requests"], hit)
    return found + _ends(runs, lines)


def of_kind(lines: Iterable[Line], kind: str) -> list[Line]:
    """The lines of a kind."""
    return [line for line in lines if line["kind"] == kind]


def resumed(run: Line) -> int:
    """How many worker groups of a run began from a checkpoint."""
    kinds = [(item["entry"], "group" in item) for item in run["journal"]]
    first = kinds.index(("checkpoint", False)) if ("checkpoint", False) in kinds else len(kinds)
    return kinds[first:].count(("opened", True))


def _campaign(campaign: Line, done: int) -> list[str]:
    """As many failures as there should be, and a test set."""
    found = [f"{done} failures of {campaign['failures']}"] if done != campaign["failures"] else []
    scored = campaign["scored"]
    if not scored or len(set(scored)) < len(scored):
        found.append(f"the undisturbed run scored {len(set(scored))} rows in {len(scored)} lines")
    return found


def _ends(runs: Sequence[Line], lines: Sequence[Line]) -> list[str]:
    """The end of each run of which there is anything else is in the record, once."""
    ends = Counter(run["run"] for run in runs)
    names = {line["run"] for kind in ("failure", "drivers", "workers") for line in of_kind(lines, kind)}
    found = [f"{name}: its end is not in the record" for name in sorted(names - set(ends))]
    found += [f"{name}: its end is in the record more than once" for name in sorted(ends) if ends[name] > 1]
    return found if ends or found else ["no run is in the record"]


def _state(run: Line) -> list[str]:
    """Each failure is one that a run survives: it succeeded once, with the weights of an undisturbed one."""
    name, state = run["run"], run["state"]
    if state != "SUCCEEDED":
        return [f"{name}: {state} ({run['reason']})"]
    if run["causes"][-1:] != ["SUCCEEDED"]:
        return [f"{name}: SUCCEEDED, but its last attempt did not"]
    results = sum(entry["entry"] == "finished" for entry in run["journal"])
    if results != 1:
        return [f"{name}: SUCCEEDED with {results} results in its journal"]
    right = run["weights"] is not None and run["weights"] == run["undisturbed"]
    return [] if right else [f"{name}: SUCCEEDED without the undisturbed run's weights"]


def _scores(run: Line, expected: Sequence[str]) -> list[str]:
    """Its result has each row of the test set once."""
    counts: Counter[str] = Counter(run["scores"])
    if run["state"] == "SUCCEEDED" and counts != Counter(expected):
        wrong = sorted({*counts, *expected} - {name for name in expected if counts[name] == 1})
        return [f"{run['run']}: not scored once: {', '.join(wrong)}"]
    return []


def _order(run: Line) -> list[str]:
    """After an attempt has opened, the journal has nothing of an earlier one."""
    newest, groups = 0, groups_of(run["journal"])
    for entry in run["journal"]:
        attempt = writer_of(entry, groups)
        if attempt is None and entry["entry"] == "checkpoint":
            return [f"{run['run']}: {entry['checkpoint']} is of a worker group that has not opened"]
        if attempt is not None and attempt < newest:
            return [f"{run['run']}: its journal has an entry of attempt {attempt} after {newest}"]
        newest = max(newest, attempt or 0)
    return []


def _looks(run: Line, lines: Sequence[Line]) -> list[str]:
    """The processes of each attempt that came as far as the journal were seen, so that two at once would have been."""
    groups = groups_of(run["journal"])
    # An attempt that ended sooner may have had workers between two looks.
    trained = {writer_of(item, groups) for item in run["journal"] if is_trained(item) or item["entry"] == "finished"}
    opened = {item["attempt"] for item in run["journal"] if item["entry"] == "opened" and "group" not in item}
    found = []
    for kind, expected in (("drivers", opened), ("workers", trained - {None})):
        seen = {attempt for line in of_kind(lines, kind) if line["run"] == run["run"] for attempt in line["attempts"]}
        found += [f"{run['run']}: no {kind} of attempt {attempt} were seen" for attempt in sorted(expected - seen)]
    return found


def _requests(runs: Sequence[Line], requests: Iterable[Sequence[Any]], hit_by_outages: set[str]) -> list[str]:
    """What the storage saw of each run, see `Replay`."""
    replays = {run["run"]: Replay(run["run"], run["journal"], may_repeat=run["run"] in hit_by_outages) for run in runs}
    for method, key, status in requests:
        name, _, rest = key.partition("/")
        if status in WENT_WELL and name in replays:
            replays[name].take(method, rest)
    for replay in replays.values():
        replay.end()
    return [text for replay in replays.values() for text in replay.found]


def main(path: str) -> int:
    """Prints what is wrong, or what was done."""
    lines = [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    found = problems(lines)
    for text in found:
        print(text)
    counts = Counter(line["name"] for line in of_kind(lines, "failure"))
    states = Counter(line["state"] for line in of_kind(lines, "run"))
    seed = next((line["seed"] for line in of_kind(lines, "campaign")), None)
    went_on = sum(resumed(run) for run in of_kind(lines, "run"))
    print(
        f"seed {seed} · {dict(counts)} · runs {dict(states)} · {went_on} worker groups began from a checkpoint · "
        f"{len(found)} problems"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
