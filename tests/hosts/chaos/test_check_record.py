"""What the checker of a campaign's record finds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.chaos.check_record import main, problems, resumed
from tests.hosts.chaos.replay import replayed, summary_of

Record = list[dict[str, Any]]
FIRST, SECOND, TAKEN_OVER = "checkpoint-10-a1-g1", "checkpoint-20-a2-g2", "checkpoint-15-a1-g1-g2"
SCORING = "a/attempts/2/outputs-g2/evaluation/test.jsonl"
FINISHED = {"entry": "finished", "attempt": 2, "outputs": "attempts/2/outputs-g2"}


def put(key: str, status: int = 200) -> list[Any]:
    return ["PUT", key, status]


def journal(number: int) -> list[Any]:
    return put(f"a/journal/{number:08}.json")


def manifest(name: str) -> list[Any]:
    return put(f"a/checkpoints/{name}/MANIFEST.json")


def weights(method: str, name: str) -> list[Any]:
    return [method, f"a/checkpoints/{name}/model.safetensors", 206 if method == "GET" else 200]


def report(attempt: int) -> list[Any]:
    return put(f"a/attempts/{attempt}/metrics-g{attempt}.jsonl")


def good() -> Record:
    """A run whose first attempt stored a checkpoint and staged another, from which the second went on."""
    requests = [
        *(journal(1), put("a/journal/00000001.json", 412), journal(2), journal(3)),
        *(report(1), weights("PUT", FIRST), manifest(FIRST), journal(4), report(1)),
        *(journal(5), journal(6), journal(7)),
        *(weights("PUT", TAKEN_OVER), manifest(TAKEN_OVER), journal(8), weights("GET", TAKEN_OVER)),
        *(report(2), weights("PUT", SECOND), manifest(SECOND), journal(9)),
        *(["DELETE", f"a/checkpoints/{FIRST}/MANIFEST.json", 204], weights("DELETE", FIRST)),
        *(weights("GET", SECOND), put(SCORING), journal(10)),
    ]
    run = {
        **{"kind": "run", "run": "a", "state": "SUCCEEDED", "reason": "", "causes": ["NODE_LOST", "SUCCEEDED"]},
        **{"weights": "1f", "undisturbed": "1f", "scores": ["x", "y"]},
        "journal": [
            {"entry": "opened", "attempt": 1},
            {"entry": "prepared", "attempt": 1},
            {"entry": "opened", "attempt": 1, "group": "g1"},
            {"entry": "checkpoint", "checkpoint": FIRST},
            {"entry": "opened", "attempt": 2},
            {"entry": "prepared", "attempt": 2},
            {"entry": "opened", "attempt": 2, "group": "g2"},
            {"entry": "checkpoint", "checkpoint": TAKEN_OVER},
            {"entry": "checkpoint", "checkpoint": SECOND},
            FINISHED,
        ],
    }
    return [
        {"kind": "drivers", "run": "a", "attempts": [1]},
        {"kind": "campaign", "seed": 7, "failures": 1, "scored": ["x", "y"]},
        {"kind": "workers", "run": "a", "attempts": [1]},
        {"kind": "failure", "number": 1, "name": "kill a host", "run": "a", "at_s": 1.0},
        {"kind": "drivers", "run": "a", "attempts": [2]},
        # They live for a while, and write nothing.
        {"kind": "workers", "run": "a", "attempts": [1, 2]},
        run,
        {"kind": "storage", "requests": requests},
    ]


def line(lines: Record, kind: str) -> dict[str, Any]:
    return next(item for item in lines if item["kind"] == kind)


def with_run(**changes: Any) -> Record:
    lines = good()
    line(lines, "run").update(changes)
    return lines


def with_line(kind: str, **changes: Any) -> Record:
    lines = good()
    line(lines, kind).update(changes)
    return lines


def without(kind: str, *, attempt: int | None = None) -> Record:
    """Without the lines of a kind, or the attempt in them."""
    if attempt is None:
        return [item for item in good() if item["kind"] != kind]
    lines = good()
    for item in lines:
        if item["kind"] == kind:
            item["attempts"] = [number for number in item["attempts"] if number != attempt]
    return lines


def with_entries(at: int, *entries: dict[str, Any], instead: int = 0) -> Record:
    """Adds entries to the journal after so many, or has them instead of those that follow, each with its request."""
    lines = good()
    found, requests = line(lines, "run")["journal"], line(lines, "storage")["requests"]
    numbers = {journal(number)[1]: number for number in range(at + 1, len(found) + 1)}
    first = requests.index(journal(at + 1))
    found[at : at + instead] = entries
    kept = []
    for method, key, status in requests[first:]:
        number = numbers.get(key, 0)
        if number == 0:
            kept.append([method, key, status])
        elif number > at + instead:
            kept.append(journal(number + len(entries) - instead))
    requests[first:] = [*(journal(at + number) for number in range(1, len(entries) + 1)), *kept]
    return lines


def with_requests(change: Callable[[list[list[Any]]], Any]) -> Record:
    lines = good()
    change(line(lines, "storage")["requests"])
    return lines


def before(request: list[Any], *added: list[Any]) -> Callable[[list[list[Any]]], None]:
    """Adds requests before one of those that there are."""

    def change(requests: list[list[Any]]) -> None:
        at = requests.index(request)
        requests[at:at] = added

    return change


def swapped(requests: list[list[Any]], first: list[Any], second: list[Any]) -> None:
    one, other = requests.index(first), requests.index(second)
    requests[one], requests[other] = requests[other], requests[one]


def test_a_good_campaign_has_no_problem() -> None:
    assert problems(good()) == []
    assert resumed(line(good(), "run")) == 1


ENDS = {
    "other weights": (with_run(weights="2e"), "a: SUCCEEDED without the undisturbed run's weights"),
    "no weights at all": (
        with_run(weights=None, undisturbed=None),
        "a: SUCCEEDED without the undisturbed run's weights",
    ),
    "failed": (with_run(state="FAILED", reason="it failed", scores=[]), "a: FAILED (it failed)"),
    "not ended": (with_run(state="RETRYING", scores=[]), "a: RETRYING ()"),
    "no attempt": (with_run(causes=[]), "a: SUCCEEDED, but its last attempt did not"),
    "a lost attempt": (with_run(causes=["NODE_LOST"]), "a: SUCCEEDED, but its last attempt did not"),
    "no result": (with_entries(9, instead=1), "a: SUCCEEDED with 0 results in its journal"),
    "two results": (
        with_entries(9, FINISHED),
        "a: SUCCEEDED with 2 results in its journal",
    ),
    "no end": (without("run"), "a: its end is not in the record"),
    "no end of another run": (
        [*good(), {"kind": "drivers", "run": "b", "attempts": [1]}],
        "b: its end is not in the record",
    ),
    "two ends": ([*good(), line(good(), "run")], "a: its end is in the record more than once"),
    "fewer failures": (with_line("campaign", failures=2), "1 failures of 2"),
}
MISSING = {
    "nothing": ([], "the record has 0 lines campaign, not one"),
    "campaign": (without("campaign"), "the record has 0 lines campaign, not one"),
    "storage": (without("storage"), "the record has 0 lines storage, not one"),
    "second storage": ([*good(), line(good(), "storage")], "the record has 2 lines storage, not one"),
    "requests": (with_line("storage", requests=[]), "a: entry 1 of its journal is not among the storage's requests"),
    "last request": (
        with_requests(lambda requests: requests.pop()),
        "a: entry 10 of its journal is not among the storage's requests",
    ),
    "drivers": (without("drivers", attempt=1), "a: no drivers of attempt 1 were seen"),
    "workers": (without("workers", attempt=2), "a: no workers of attempt 2 were seen"),
    "test set": (
        [{**item, **{key: [] for key in ("scored", "scores") if key in item}} for item in good()],
        "the undisturbed run scored 0 rows in 0 lines",
    ),
    "run": (
        [item for item in without("run") if item["kind"] in ("campaign", "storage")],
        "no run is in the record",
    ),
}
ROWS = {
    "a row twice": (with_run(scores=["x", "y", "y"]), "a: not scored once: y"),
    "a row less": (with_run(scores=["x"]), "a: not scored once: y"),
    "another row": (with_run(scores=["x", "y", "z"]), "a: not scored once: z"),
    "a row twice, undisturbed too": (
        [{**item, **{key: ["x", "x"] for key in ("scored", "scores") if key in item}} for item in good()],
        "the undisturbed run scored 1 rows in 2 lines",
    ),
    "scored again": (
        with_requests(before(journal(10), put(SCORING))),
        "a: attempt 2 scored the test set more than once",
    ),
    "scored elsewhere, too": (
        with_requests(before(journal(10), put(SCORING.replace("g2", "g3")))),
        "a: attempt 2 scored the test set more than once",
    ),
    "scored after the end": (
        with_requests(lambda requests: requests.append(put(SCORING.replace("attempts/2", "attempts/3")))),
        "a: attempt 3 scored the test set after the run had finished",
    ),
    "no score": (
        with_requests(lambda requests: requests.remove(put(SCORING))),
        "a: it has finished, but no score of the attempt that finished it was stored",
    ),
}
BESIDE = {
    "drivers": (with_line("drivers", attempts=[1, 2]), "a: the attempts [1, 2] ran at the same time"),
    "a driver's entry": (
        with_entries(9, {"entry": "prepared", "attempt": 1}),
        "a: its journal has an entry of attempt 1 after 2",
    ),
    "a checkpoint's entry": (
        with_entries(7, {"entry": "checkpoint", "checkpoint": FIRST}),
        "a: its journal has an entry of attempt 1 after 2",
    ),
    "a stranger's entry": (
        with_entries(9, {"entry": "opened", "attempt": 2, "group": "g3"}, {"entry": "checkpoint", "checkpoint": "g9"}),
        "a: g9 is of a worker group that has not opened",
    ),
    "a step": (
        with_requests(before(journal(6), report(1))),
        "a: attempt 1 trained after attempt 2 had opened: it wrote attempts/1/metrics-g1.jsonl",
    ),
    "a checkpoint": (
        with_requests(before(journal(7), weights("PUT", FIRST))),
        f"a: attempt 1 trained after attempt 2 had opened: it wrote checkpoints/{FIRST}/model.safetensors",
    ),
    "a score": (
        with_requests(before(journal(7), put("a/attempts/1/outputs-g1/evaluation/test.jsonl"))),
        "a: attempt 1 trained after attempt 2 had opened: it wrote attempts/1/outputs-g1/evaluation/test.jsonl",
    ),
    "too early": (
        with_requests(before(journal(5), report(2))),
        "a: attempt 2 trained before it had opened: it wrote attempts/2/metrics-g2.jsonl",
    ),
    "an entry created twice": (
        with_requests(before(journal(6), journal(5))),
        "a: entry 5 of its journal was created after entry 5",
    ),
}
READS = {
    "before the manifest": (
        with_requests(before(manifest(FIRST), weights("GET", FIRST))),
        f"a: checkpoints/{FIRST}/model.safetensors was read before its checkpoint had a manifest",
    ),
    "after the manifest is gone": (
        with_requests(before(journal(10), weights("GET", FIRST))),
        f"a: checkpoints/{FIRST}/model.safetensors was read before its checkpoint had a manifest",
    ),
    "a manifest that was refused": (
        with_requests(lambda requests: requests[requests.index(manifest(FIRST))].__setitem__(2, 503)),
        f"a: {FIRST} was entered without a manifest",
    ),
    "entered before the manifest": (
        with_requests(lambda requests: swapped(requests, manifest(SECOND), journal(9))),
        f"a: {SECOND} was entered without a manifest",
    ),
    "none to go on from": (
        with_requests(lambda requests: requests.remove(weights("GET", TAKEN_OVER))),
        "a: attempt 2 went on, but no checkpoint was read for it",
    ),
    "of a stranger": (
        with_requests(before(journal(10), weights("PUT", "checkpoint-30-a2-g9"))),
        "a: checkpoint-30-a2-g9 was written by a worker group that has not opened",
    ),
    "damaged": (
        with_entries(9, {"entry": "quarantined"}),
        "a: a checkpoint was found damaged",
    ),
}
CASES = {
    f"{name}: {key}": case
    for name, cases in {"end": ENDS, "missing": MISSING, "rows": ROWS, "next to": BESIDE, "reads": READS}.items()
    for key, case in cases.items()
}


@pytest.mark.parametrize(("lines", "expected"), CASES.values(), ids=CASES)
def test_what_may_not_be_is_found(lines: Record, expected: str) -> None:
    assert expected in problems(lines)


def of_one_attempt() -> Record:
    """A run that stored one checkpoint, and finished."""
    requests = [
        *(journal(1), journal(2), report(1), weights("PUT", FIRST), manifest(FIRST), journal(3)),
        *(weights("GET", FIRST), put("a/attempts/1/outputs-g1/evaluation/test.jsonl"), journal(4)),
    ]
    lines = with_run(
        journal=[
            {"entry": "opened", "attempt": 1},
            {"entry": "opened", "attempt": 1, "group": "g1"},
            {"entry": "checkpoint", "checkpoint": FIRST},
            {"entry": "finished", "attempt": 1, "outputs": "attempts/1/outputs-g1"},
        ]
    )
    line(lines, "storage")["requests"] = requests
    return lines


def test_a_result_is_of_a_checkpoint_that_was_read_after_steps_that_were_reported() -> None:
    lines = of_one_attempt()
    assert problems(lines) == []
    requests = line(lines, "storage")["requests"]
    requests.remove(weights("GET", FIRST))
    assert problems(lines) == ["a: it has finished, but no checkpoint was read for its result"]
    requests.remove(report(1))
    assert "a: it has finished, but no step was reported" in problems(lines)


def test_a_score_may_be_stored_again_where_the_answer_may_be_lost() -> None:
    lines = with_requests(before(journal(10), put(SCORING)))
    line(lines, "failure")["name"] = "cut the storage off"
    assert problems(lines) == []


def test_a_later_attempt_may_score_again() -> None:
    """The first has scored, and was killed before it could finish."""
    lines = with_requests(before(journal(5), put("a/attempts/1/outputs-g1/evaluation/test.jsonl")))
    assert problems(lines) == []


def test_an_attempt_that_ended_early_needs_no_more_evidence_than_its_driver() -> None:
    # One that never opened, and one whose workers were killed before they read the checkpoint.
    opened = ({"entry": "opened", "attempt": 3}, {"entry": "opened", "attempt": 3, "group": "g3"})
    last = ({"entry": "opened", "attempt": 4}, {"entry": "opened", "attempt": 4, "group": "g4"})
    lines = with_entries(8, *opened, *last, {**FINISHED, "attempt": 4, "outputs": "attempts/4/outputs-g4"}, instead=2)
    requests = line(lines, "storage")["requests"]
    requests[:] = [item for item in requests if SECOND not in item[1] and item not in (report(2), put(SCORING))]
    scoring = put("a/attempts/4/outputs-g4/evaluation/test.jsonl")
    before(journal(13), weights("GET", TAKEN_OVER), scoring)(requests)
    lines += [{"kind": kind, "run": "a", "attempts": [4]} for kind in ("drivers", "workers")]
    assert problems(lines) == ["a: no drivers of attempt 3 were seen"]
    assert problems([*lines, {"kind": "drivers", "run": "a", "attempts": [3]}]) == []


@pytest.mark.parametrize(("lines", "code"), [(good(), 0), (without("campaign"), 1), ([], 1)])
def test_the_exit_code_says_whether_there_is_a_problem(
    lines: Record, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    record.write_text("".join(f"{json.dumps(item)}\n" for item in lines))
    assert main(str(record)) == code
    printed = capsys.readouterr().out.splitlines()
    assert printed[:-1] == problems(lines)
    assert printed[-1].endswith(f"{len(problems(lines))} problems")


def test_the_record_has_what_a_replay_needs() -> None:
    kept = [item for item in line(good(), "storage")["requests"] if item[2] != 503]
    others = [
        *("a/status.json", "a/attempts/1/status.json", "a/attempts/1/logs/rank-0-g1.log", "a/evaluation/test.jsonl"),
        *("a/attempts/1/ray/a-a1/checkpoint-10-a1-g1/pointer.json", "a/checkpoints/base-00/config.json"),
    ]
    seen = [[method, f"/runs/runs/{key}", status] for method, key, status in [*kept, *(put(key) for key in others)]]
    seen += [["HEAD", f"/runs/runs/{SCORING}", 200], ["PUT", f"/runs/prepared/{SCORING}", 200]]
    assert replayed(seen, "/runs/runs/") == [tuple(item) for item in kept]


def test_entries_are_recorded_by_what_tells_who_wrote_them() -> None:
    assert [
        summary_of(entry)
        for entry in (
            {"number": 1, "kind": "opened", "attempt": 1, "driver": "d", "experiment": {}, "sealed": {}},
            {"number": 2, "kind": "opened", "attempt": 1, "group": "g1", "workers": 2, "sealed": {}},
            {"number": 3, "kind": "checkpoint", "checkpoint": {"name": FIRST, "attempt": 1}, "removes": []},
            {"number": 4, "kind": "finished", "attempt": 1, "outputs": "attempts/1/outputs-g1", "files": []},
        )
    ] == [
        {"entry": "opened", "attempt": 1},
        {"entry": "opened", "attempt": 1, "group": "g1"},
        {"entry": "checkpoint", "checkpoint": FIRST},
        {"entry": "finished", "attempt": 1, "outputs": "attempts/1/outputs-g1"},
    ]
