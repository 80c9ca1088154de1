"""What a failed attempt means."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.model import Attempt, AttemptState, Cause, Gang, RunState
from jobs.service.retry_policy import MAX_ATTEMPTS_WITHOUT_PROGRESS, RULES, RetryDecision, decide_retry

FAILING = sorted(set(Cause) - {Cause.SUCCEEDED})
MAX_RETRIES = 3
TRANSIENT = "requests.exceptions.ConnectionError: Connection refused"

End = tuple[Cause, int | None, int | None, str]


def ended(cause: Cause, exit_code: int | None = None, last_step: int | None = None, message: str = "") -> End:
    """How an attempt ended."""
    return cause, exit_code, last_step, message


def decision_of(*ends: End, max_retries: int = MAX_RETRIES) -> RetryDecision:
    """What is made of attempts that ended so."""
    return decide_retry(attempts_of(ends), max_retries)


def attempts_of(ends: Sequence[End]) -> list[Attempt]:
    """Attempts that ended so, in this order."""
    return [
        Attempt(
            run_id="one",
            number=number,
            submission_id=f"one-a{number}",
            state=AttemptState.ENDED,
            gang=Gang(num_workers=1, resources_per_worker={"CPU": 1.0}),
            created_s=100.0 * number,
            ended_s=100.0 * number + 50,
            cause=cause,
            exit_code=code,
            last_step=step,
            message=message,
        )
        for number, (cause, code, step, message) in enumerate(ends, start=1)
    ]


def test_every_cause_has_a_rule() -> None:
    assert set(RULES) == set(Cause) - {Cause.SUCCEEDED}


def test_success_is_the_end() -> None:
    decision = decision_of(ended(Cause.NODE_LOST), ended(Cause.SUCCEEDED, 0, 40))
    assert (decision.retry, decision.state) == (False, RunState.SUCCEEDED)


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (Cause.NODE_LOST, RunState.PREEMPTED),
        (Cause.CLUSTER_LOST, RunState.PREEMPTED),
        (Cause.WORKER_LOST, RunState.RETRYING),
        (Cause.DRIVER_KILLED, RunState.RETRYING),
        (Cause.STORAGE, RunState.RETRYING),
        (Cause.ENTRYPOINT, RunState.RETRYING),
        (Cause.OUT_OF_MEMORY, RunState.RETRYING),
    ],
)
def test_what_may_pass_is_tried_again(cause: Cause, state: RunState) -> None:
    decision = decision_of(ended(cause))
    assert (decision.retry, decision.state) == (True, state)
    assert decision.backoff_s > 0


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (Cause.USER_ERROR, RunState.FAILED),
        (Cause.FENCED, RunState.FAILED),
        (Cause.STOPPED, RunState.STOPPED),
    ],
)
def test_what_cannot_pass_is_not(cause: Cause, state: RunState) -> None:
    decision = decision_of(ended(cause, 2, message="training.max_stps: unknown key"), max_retries=100)
    assert (decision.retry, decision.state, decision.backoff_s) == (False, state, 0.0)
    assert "training.max_stps" in decision.reason


def test_lost_nodes_are_not_counted() -> None:
    decision = decision_of(*[ended(Cause.NODE_LOST, 11, step) for step in range(50)], max_retries=0)
    assert (decision.retry, decision.state) == (True, RunState.PREEMPTED)
    assert "not counted as a retry" in decision.reason


@pytest.mark.parametrize("causes", [[Cause.NODE_LOST], [Cause.NODE_LOST, Cause.CLUSTER_LOST]])
def test_lost_nodes_without_a_step_come_to_an_end(causes: list[Cause]) -> None:
    ends = [ended(causes[number % len(causes)], None, 7) for number in range(MAX_ATTEMPTS_WITHOUT_PROGRESS + 1)]
    assert decision_of(*ends[:-1]).retry
    last = decision_of(*ends)
    assert (last.retry, last.state) == (False, RunState.FAILED)
    assert "made no progress" in last.reason


def test_retries_are_used_up() -> None:
    ends = [ended(Cause.WORKER_LOST, 8, step) for step in range(MAX_RETRIES + 1)]
    assert decision_of(*ends[:-1]).retry
    assert "retry 3 of 3" in decision_of(*ends[:-1]).reason
    last = decision_of(*ends)
    assert (last.retry, last.state) == (False, RunState.FAILED)
    assert "job.max_retries 3 is used up" in last.reason


def test_lost_nodes_in_between_use_none_up() -> None:
    ends = [ended(Cause.STORAGE, 4, 1), *[ended(Cause.NODE_LOST, None, 2)] * 20, ended(Cause.STORAGE, 4, 3)]
    decision = decision_of(*ends)
    assert decision.retry
    assert "retry 2 of 3" in decision.reason


def test_no_retries_means_none() -> None:
    assert not decision_of(ended(Cause.WORKER_LOST, 8), max_retries=0).retry


def test_memory_that_runs_out_is_tried_once_more_and_then_explained() -> None:
    assert decision_of(ended(Cause.OUT_OF_MEMORY, 9, 4)).retry
    decision = decision_of(ended(Cause.OUT_OF_MEMORY, 9, 4), ended(Cause.OUT_OF_MEMORY, 9, 4))
    assert not decision.retry
    assert "training.per_device_train_batch_size" in decision.reason
    assert "training.gradient_accumulation_steps" in decision.reason


def test_an_environment_is_made_once_more_only_where_it_may_pass() -> None:
    missing = ended(Cause.ENVIRONMENT, message="ERROR: No matching distribution found for jiver")
    silent = ended(Cause.ENVIRONMENT, message=TRANSIENT)
    assert not decision_of(missing).retry
    assert "jiver" in decision_of(missing).reason
    assert decision_of(silent).retry
    assert not decision_of(silent, silent).retry


def test_an_entrypoint_that_fails_twice_in_the_same_way_at_the_same_place_has_a_bug() -> None:
    decision = decision_of(
        ended(Cause.ENTRYPOINT, 1, 40, "KeyError: 'x'"), ended(Cause.ENTRYPOINT, 1, 40, "KeyError: 'x'")
    )
    assert not decision.retry
    assert "2 times in the same way and at the same step" in decision.reason
    assert "exit code 1: KeyError: 'x'" in decision.reason


@pytest.mark.parametrize(
    "second",
    [ended(Cause.ENTRYPOINT, 3, 40), ended(Cause.ENTRYPOINT, 1, 41)],
    ids=["another exit code", "a step further"],
)
def test_another_way_or_place_is_another_chance(second: End) -> None:
    assert decision_of(ended(Cause.ENTRYPOINT, 1, 40), second).retry


def test_the_first_checkpoint_counts_as_a_step() -> None:
    assert decision_of(ended(Cause.ENTRYPOINT, 1, None), ended(Cause.ENTRYPOINT, 1, 1)).retry
    assert not decision_of(ended(Cause.ENTRYPOINT, 1, None), ended(Cause.ENTRYPOINT, 1, None)).retry


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_step() -> None:
    ends = [ended(Cause.NODE_LOST, None, 5)] * 10
    pauses = [decision_of(*ends[:count]).backoff_s for count in range(1, len(ends) + 1)]
    rule = RULES[Cause.NODE_LOST]
    assert pauses[:3] == [rule.first_backoff_s, 2 * rule.first_backoff_s, 4 * rule.first_backoff_s]
    assert pauses[-1] == rule.max_backoff_s
    assert decision_of(*ends, ended(Cause.NODE_LOST, None, 6)).backoff_s == rule.first_backoff_s


ends = st.builds(
    ended,
    st.sampled_from(FAILING),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 3),
    st.sampled_from(["", "ValueError: no", TRANSIENT]),
)


@settings(deadline=None)
@given(history=st.lists(ends, min_size=1, max_size=12), max_retries=st.integers(0, 5))
def test_a_decision_is_complete(history: list[End], max_retries: int) -> None:
    decision = decision_of(*history, max_retries=max_retries)
    assert decision.state in (
        {RunState.RETRYING, RunState.PREEMPTED} if decision.retry else {RunState.FAILED, RunState.STOPPED}
    )
    assert decision.reason and "\n" not in decision.reason
    assert (decision.backoff_s > 0) == decision.retry


@settings(deadline=None)
@given(data=st.data(), max_retries=st.integers(0, 5))
def test_no_run_is_retried_for_ever_without_a_step(data: st.DataObject, max_retries: int) -> None:
    causes = st.sampled_from([cause for cause in FAILING if RULES[cause].retried])
    history = [ended(data.draw(causes), None, 7, TRANSIENT)]
    while decision_of(*history, max_retries=max_retries).retry:
        assert len(history) <= MAX_ATTEMPTS_WITHOUT_PROGRESS
        history.append(ended(data.draw(causes), None, 7, TRANSIENT))


@settings(deadline=None)
@given(
    causes=st.lists(st.sampled_from([Cause.WORKER_LOST, Cause.DRIVER_KILLED, Cause.STORAGE]), min_size=2, max_size=9)
)
def test_pauses_never_shrink_within_a_row(causes: list[Cause]) -> None:
    alike = [ended(causes[0], None, 1)] * len(causes)
    pauses = [decision_of(*alike[:count], max_retries=100).backoff_s for count in range(1, len(alike) + 1)]
    assert all(earlier <= later for earlier, later in pairwise(pauses))
