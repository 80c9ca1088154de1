import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import Ledger
from jobs.model import Gang, Progress, Run, RunFilter, RunState
from tests.jobs.ledger.builders import add, add_in_state, make_run


class TestAdding:
    def test_a_run_is_read_as_it_was_added(self, ledger: Ledger) -> None:
        run = make_run(
            "first",
            config={
                "run": {"name": "first", "note": None},
                "data": {"buckets_s": [5, 7.5, 30], "train": "/srv/говор/$HOME's/train.csv"},
                "job": {"tags": ["a"]},
            },
            gang=Gang(num_workers=3, resources_per_worker={"CPU": 0.5, "GPU": 0.25, "slot": 1.0}, extra={"CPU": 2.0}),
            tags=["nightly", "сртпски"],
            priority=-7,
            submitted_s=1763683200.123456,
        )
        added = ledger.requests.add_run(run, text="submitted by ana")
        assert added == run
        assert ledger.run("first") == run

    def test_it_begins_queued_with_one_event(self, ledger: Ledger) -> None:
        run = make_run("first", submitted_s=5.0).model_copy(update={"state": RunState.TRAINING, "version": 9})
        added = ledger.requests.add_run(run, text="submitted by ana")
        assert (added.state, added.version) == (RunState.QUEUED, 0)
        assert added == ledger.run("first")
        (event,) = ledger.events("first")
        assert (event.cause, event.text, event.before, event.state) == (
            "submitted",
            "submitted by ana",
            None,
            RunState.QUEUED,
        )
        assert (event.attempt, event.at_s, event.run_id) == (0, 5.0, "first")

    @pytest.mark.parametrize(
        ("state", "fixes"),
        [
            (RunState.QUEUED, ["--set run.name="]),
            (RunState.TRAINING, ["--set run.name="]),
            (RunState.SUCCEEDED, ["--set run.name="]),
            (RunState.FAILED, ["--set run.name=", "`rayscribe resume taken`"]),
            (RunState.STOPPED, ["--set run.name=", "`rayscribe resume taken`"]),
        ],
    )
    def test_a_taken_id_is_refused_with_its_state_and_the_fix(
        self, ledger: Ledger, state: RunState, fixes: list[str]
    ) -> None:
        before = add_in_state(ledger, "taken", state)
        with pytest.raises(ConflictError) as caught:
            ledger.requests.add_run(make_run("taken", user="ben", uid="other"), text="submitted by ben")
        message = str(caught.value)
        assert "taken" in message and state in message
        assert all(fix in message for fix in fixes)
        assert ("resume" in message) == (len(fixes) == 2)
        assert ledger.run("taken") == before

    def test_one_of_many_threads_gets_a_name(self, ledger: Ledger) -> None:
        outcomes = together(8, lambda number: ledger.requests.add_run(make_run("wanted", uid=str(number)), text=""))
        winners = [outcome for outcome in outcomes if isinstance(outcome, Run)]
        assert [type(outcome) for outcome in outcomes if outcome not in winners] == [ConflictError] * 7
        assert winners == [ledger.run("wanted")]
        assert len(ledger.events("wanted")) == 1


class TestIdempotencyKey:
    def test_the_same_request_again_gives_the_run_that_is_there(self, ledger: Ledger) -> None:
        first = ledger.requests.add_run(make_run("a", tags=["x"]), text="", idempotency_key="k")
        later = make_run("a", tags=["x"], submitted_s=99.0)
        assert later.uid != first.uid
        assert ledger.requests.add_run(later, text="again", idempotency_key="k") == first
        assert len(ledger.events("a")) == 1

    def test_it_gives_the_run_in_whatever_state_it_is_now(self, ledger: Ledger) -> None:
        ledger.requests.add_run(make_run("a"), text="", idempotency_key="k")
        stopped = ledger.requests.request_stop("a", by="ana", at_s=1001.0)
        assert ledger.requests.add_run(make_run("a"), text="", idempotency_key="k") == stopped

    @pytest.mark.parametrize(
        "other",
        [
            {"priority": 1},
            {"tags": ["x"]},
            {"address": "http://other:8265"},
            {"package": "1" * 64},
            {"config": {"training": {"max_steps": 601}}},
            {"gang": Gang(num_workers=1, resources_per_worker={"CPU": 1.0})},
            {"run_folder": "/elsewhere"},
        ],
    )
    def test_the_same_key_with_another_content_is_refused(self, ledger: Ledger, other: dict[str, Any]) -> None:
        ledger.requests.add_run(make_run("a"), text="", idempotency_key="k")
        with pytest.raises(ConflictError, match=r"idempotency key k has submitted run a.*new key"):
            ledger.requests.add_run(make_run("a", **other), text="", idempotency_key="k")

    def test_another_name_is_another_content(self, ledger: Ledger) -> None:
        ledger.requests.add_run(make_run("a"), text="", idempotency_key="k")
        with pytest.raises(ConflictError, match="idempotency key k"):
            ledger.requests.add_run(make_run("b"), text="", idempotency_key="k")
        assert [run.id for run in ledger.runs().runs] == ["a"]

    def test_users_do_not_share_keys(self, ledger: Ledger) -> None:
        ledger.requests.add_run(make_run("a", user="ana"), text="", idempotency_key="k")
        ledger.requests.add_run(make_run("b", user="ben"), text="", idempotency_key="k")
        assert {run.id for run in ledger.runs().runs} == {"a", "b"}

    def test_threads_that_race_with_one_key_all_get_the_one_run(self, ledger: Ledger) -> None:
        def submit(number: int) -> Run:
            run = make_run("raced", uid=str(number), submitted_s=float(number))
            return ledger.requests.add_run(run, text="", idempotency_key="k")

        outcomes = together(8, submit)
        assert outcomes == [ledger.run("raced")] * 8
        assert len(ledger.events("raced")) == 1


class TestDependencies:
    def test_a_run_may_wait_for_others_that_may_still_succeed(self, ledger: Ledger) -> None:
        for name, state in (("q", RunState.QUEUED), ("t", RunState.TRAINING), ("s", RunState.SUCCEEDED)):
            add_in_state(ledger, name, state)
        assert add(ledger, "last", depends_on=["q", "t", "s"]).depends_on == ["q", "t", "s"]

    def test_what_is_not_there_is_refused_with_a_near_name(self, ledger: Ledger) -> None:
        add(ledger, "whisper-digits")
        with pytest.raises(NotFoundError, match=r"last depends on whisper-digts.*did you mean whisper-digits\?"):
            add(ledger, "last", depends_on=["whisper-digts"])
        with pytest.raises(NotFoundError, match="last depends on last"):
            add(ledger, "last", depends_on=["last"])
        assert [run.id for run in ledger.runs().runs] == ["whisper-digits"]

    @pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED])
    def test_what_will_never_succeed_is_refused_with_the_fix(self, ledger: Ledger, state: RunState) -> None:
        add_in_state(ledger, "lost", state)
        with pytest.raises(ConflictError, match=f"last depends on lost, which is {state}.*`rayscribe resume lost`"):
            add(ledger, "last", depends_on=["lost"])


class TestReading:
    def test_an_unknown_name_is_answered_with_near_ones(self, ledger: Ledger) -> None:
        for name in ("whisper-digits", "whisper-micro", "ctc"):
            add(ledger, name)
        with pytest.raises(NotFoundError, match=r"no run is named whisper-digit: did you mean whisper-digits"):
            ledger.run("whisper-digit")
        with pytest.raises(NotFoundError, match=r"no run is named zzz: `rayscribe list`"):
            ledger.run("zzz")

    @pytest.mark.parametrize("name", ["", "nul\x00nul", "half \udc80 pair", "'; DROP TABLE runs; --", "ä" * 10_000])
    def test_no_name_is_too_odd_to_be_looked_for(self, ledger: Ledger, name: str) -> None:
        for look in (ledger.run, ledger.attempts, ledger.events):
            with pytest.raises(NotFoundError):
                look(name)
        assert ledger.runs(RunFilter(user=name, queue=name, tag=name)).runs == []
        assert ledger.scheduler.states([name]) == {}
        assert ledger.tokens.user_of(name) is None

    def test_text_that_databases_do_not_take_is_kept_as_far_as_it_goes(self, ledger: Ledger) -> None:
        run = add(ledger, "odd", config={"note": "nul \x00 and half \udc80"})
        assert ledger.run("odd").config == {"note": "nul \x00 and half \udc80"}
        with ledger.write() as writer:
            writer.change(run, cause="test", text="log: \x00 \udc80 ć", reason="a\x00b", at_s=2.0)
        assert ledger.run("odd").reason == "a\ufffdb"
        assert ledger.events("odd")[-1].text == "log: \ufffd ? ć"

    def test_a_loss_that_is_no_number_stays_so(self, ledger: Ledger) -> None:
        run = add(ledger, "diverged")
        progress = Progress(phase="TRAINING", step=3, loss=math.nan, eta_s=math.inf)
        with ledger.write() as writer:
            writer.change(run, cause="test", text="", progress=progress, at_s=2.0)
        read = ledger.run("diverged").progress
        assert read is not None and read.loss is not None
        assert math.isnan(read.loss) and read.eta_s == math.inf


def together(threads: int, act: Callable[[int], Any]) -> list[Any]:
    """What each of several threads, let go at once, returns or raises."""
    barrier = threading.Barrier(threads)

    def one(number: int) -> Any:
        barrier.wait()
        try:
            return act(number)
        except ConflictError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))
