"""What the checker of a campaign's record finds."""

from typing import Any

import pytest

from tests.hosts.chaos.check_record import problems

RUN: dict[str, Any] = {
    "kind": "run",
    "run": "a",
    "state": "SUCCEEDED",
    "reason": "",
    "causes": ["NODE_LOST", "SUCCEEDED"],
    "weights": "1f",
    "undisturbed": "1f",
    "finished": True,
    "journal": [
        {"entry": "opened", "attempt": 1},
        {"entry": "checkpoint", "attempt": None},
        {"entry": "opened", "attempt": 2},
        {"entry": "finished", "attempt": 2},
    ],
    "scores": ["x", "y"],
}
FAILURE = {"kind": "failure", "number": 1, "name": "kill a host", "run": "a", "at_s": 1.0}
READS = [["PUT", "c/1/model", 200], ["PUT", "c/1/MANIFEST.json", 200], ["GET", "c/1/model", 200]]


def record(
    run: dict[str, Any] | None = None, *, requests: list[list[Any]] = READS, drivers: tuple[int, ...] = (2,)
) -> list[dict[str, Any]]:
    return [
        {"kind": "campaign", "seed": 7, "failures": 1, "scored": ["x", "y"]},
        FAILURE,
        {"kind": "drivers", "run": "a", "attempts": drivers},
        {**RUN, **(run or {})},
        {"kind": "storage", "requests": requests},
    ]


def test_a_good_campaign_has_no_problem() -> None:
    assert problems(record()) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (record({"weights": "2e"}), "a: SUCCEEDED without the undisturbed run's weights"),
        (record({"finished": False}), "a: SUCCEEDED without the undisturbed run's weights"),
        (record({"state": "FAILED", "reason": "it failed", "scores": []}), "a: FAILED (it failed)"),
        (record({"state": "RETRYING", "scores": []}), "a: RETRYING ()"),
        (record({"scores": ["x", "y", "y"]}), "a: not scored once: y"),
        (record({"scores": ["x"]}), "a: not scored once: y"),
        (record({"scores": ["x", "y", "z"]}), "a: not scored once: z"),
        (record(drivers=(1, 2)), "a: the attempts (1, 2) ran beside each other"),
        (record({"journal": [*RUN["journal"], {"entry": "x", "attempt": 1}]}), "has an entry of attempt 1 after 2"),
        (record(requests=[READS[0], READS[2]]), "c/1/model was read before its checkpoint had a manifest"),
        (record(requests=[READS[0], READS[2], READS[1]]), "c/1/model was read before its checkpoint had a manifest"),
        (
            record(requests=[*READS, ["DELETE", "c/1/MANIFEST.json", 204], READS[2]]),
            "c/1/model was read before its checkpoint had a manifest",
        ),
        (record()[:3] + record()[4:], "a: its end is not in the record"),
        ([record()[0], *record()[2:]], "0 failures of 1"),
    ],
)
def test_what_may_not_be_is_found(lines: list[dict[str, Any]], expected: str) -> None:
    assert len(found := problems(lines)) == 1
    assert expected in found[0]
