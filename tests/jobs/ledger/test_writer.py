from typing import Any

import pytest

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import Ledger, RunChangedError
from jobs.model import AttemptState, Cause, Progress, RunState
from tests.jobs.ledger.builders import add, add_in_state, make_attempt, make_run


class TestChanging:
    def test_a_change_and_its_event_are_read_together(self, ledger: Ledger) -> None:
        run = add(ledger, "r")
        with ledger.write() as writer:
            changed = writer.change(
                run, cause="admitted", text="attempt 1 starts", state=RunState.SETTING_UP, attempt=1, at_s=2000.0
            )
        assert changed == ledger.run("r")
        assert (changed.state, changed.attempt, changed.updated_s, changed.version) == (
            RunState.SETTING_UP,
            1,
            2000.0,
            1,
        )
        event = ledger.events("r")[-1]
        assert (event.cause, event.text, event.at_s, event.attempt) == ("admitted", "attempt 1 starts", 2000.0, 1)
        assert (event.before, event.state) == (RunState.QUEUED, RunState.SETTING_UP)

    def test_progress_may_come_without_an_event(self, ledger: Ledger) -> None:
        run, progress = (
            add_in_state(ledger, "r", RunState.TRAINING),
            Progress(phase="TRAINING", step=5, loss=0.25, at_s=3.0),
        )
        events = ledger.events("r")
        with ledger.write() as writer:
            writer.change(run, cause="phase", text="", progress=progress, at_s=3.0, event=False)
        assert ledger.run("r").progress == progress
        assert ledger.events("r") == events

    def test_what_was_read_too_long_ago_changes_nothing(self, ledger: Ledger) -> None:
        stale = add(ledger, "r")
        stopped = ledger.requests.request_stop("r", by="ben", at_s=2.0)
        events = ledger.events("r")
        with (
            pytest.raises(RunChangedError, match="r has changed meanwhile: it is STOPPED now"),
            ledger.write() as writer,
        ):
            writer.change(stale, cause="admitted", text="", state=RunState.SETTING_UP, at_s=3.0)
        assert (ledger.run("r"), ledger.events("r")) == (stopped, events)
        assert issubclass(RunChangedError, ConflictError)

    def test_a_run_may_be_changed_twice_in_one_transaction(self, ledger: Ledger) -> None:
        run = add(ledger, "r")
        with ledger.write() as writer:
            run = writer.change(run, cause="one", text="", state=RunState.SETTING_UP, at_s=2.0)
            run = writer.change(run, cause="two", text="", state=RunState.TRAINING, at_s=3.0)
        assert ledger.run("r") == run
        assert [event.cause for event in ledger.events("r")] == ["submitted", "one", "two"]

    def test_a_block_that_raises_writes_nothing_at_all(self, ledger: Ledger) -> None:
        run = add(ledger, "r")
        with pytest.raises(ZeroDivisionError), ledger.write() as writer:
            writer.open_attempt(make_attempt("r"))
            writer.change(run, cause="admitted", text="", state=RunState.SETTING_UP, attempt=1, at_s=2.0)
            raise ZeroDivisionError
        assert (ledger.run("r"), ledger.attempts("r"), len(ledger.events("r"))) == (run, [], 1)

    def test_who_reads_meanwhile_sees_all_or_nothing(self, ledger: Ledger, ledger_url: str) -> None:
        run, reader = add(ledger, "r", tags=["t"]), Ledger.open(ledger_url)
        with ledger.write() as writer:
            changed = writer.change(run, cause="x", text="", state=RunState.SETTING_UP, at_s=2.0)
            assert reader.run("r") == run
            assert len(reader.events("r")) == 1
        assert reader.run("r") == changed
        assert len(reader.events("r")) == 2
        reader.close()

    @pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED])
    def test_a_run_that_ends_has_ended_at_that_time_unless_told(self, ledger: Ledger, state: RunState) -> None:
        told: list[tuple[str, dict[str, Any], float]] = [("a", {}, 7.0), ("b", {"ended_s": 6.5}, 6.5)]
        for name, fields, ended_s in told:
            run = add_in_state(ledger, name, RunState.TRAINING)
            with ledger.write() as writer:
                writer.change(run, cause="ended", text="", state=state, exit_code=3, at_s=7.0, **fields)
            assert (ledger.run(name).ended_s, ledger.run(name).exit_code) == (ended_s, 3)

    def test_a_run_that_is_not_there_cannot_be_changed(self, ledger: Ledger) -> None:
        with pytest.raises(NotFoundError, match="no run is named ghost"), ledger.write() as writer:
            writer.change(make_run("ghost"), cause="x", text="", at_s=1.0)

    def test_a_transaction_inside_another_is_refused_rather_than_waited_for(self, ledger: Ledger) -> None:
        with pytest.raises(AssertionError, match="inside another"), ledger.write():
            add(ledger, "r")
        add(ledger, "r")


class TestAttempts:
    def test_attempts_are_read_as_they_were_opened_and_changed(self, ledger: Ledger) -> None:
        add(ledger, "r")
        first, second = make_attempt("r", 1), make_attempt("r", 2, resume_from="step-100-a1-g0", created_s=3000.0)
        with ledger.write() as writer:
            writer.open_attempt(first)
            writer.open_attempt(second)
        assert ledger.attempts("r") == [first, second]
        ended = {
            "state": AttemptState.ENDED,
            "submitted_s": 2001.0,
            "ended_s": 2500.5,
            "cause": Cause.NODE_LOST,
            "exit_code": 11,
            "message": "node 10.0.0.3 died",
            "last_step": 100,
        }
        with ledger.write() as writer:
            writer.change_attempt("r", 1, **ended)
        assert ledger.attempt("r", 1) == first.model_copy(update=ended)
        assert ledger.attempt("r", 2) == second

    def test_a_number_is_opened_once(self, ledger: Ledger) -> None:
        add(ledger, "r")
        add(ledger, "other")
        with ledger.write() as writer:
            writer.open_attempt(make_attempt("r"))
        with pytest.raises(ConflictError, match="attempt 1 of r as new: already exists as attempt 1 of r"):
            open_one(ledger, "r", submission_id="new")
        with pytest.raises(ConflictError, match="attempt 1 of other as r-a1: already exists as attempt 1 of r"):
            open_one(ledger, "other", submission_id="r-a1")
        assert ledger.attempts("other") == []

    def test_a_refused_attempt_leaves_the_transaction_usable(self, ledger: Ledger) -> None:
        run = add(ledger, "r")
        with ledger.write() as writer:
            writer.open_attempt(make_attempt("r"))
            with pytest.raises(ConflictError):
                writer.open_attempt(make_attempt("r"))
            writer.change(run, cause="x", text="", attempt=1, at_s=2.0)
        assert ledger.run("r").attempt == 1

    def test_only_a_run_that_is_there_has_attempts(self, ledger: Ledger) -> None:
        with pytest.raises(NotFoundError, match="no run is named ghost"):
            open_one(ledger, "ghost")
        with pytest.raises(NotFoundError, match="no run is named ghost"):
            ledger.attempts("ghost")

    def test_an_attempt_that_is_not_there_is_said_so(self, ledger: Ledger) -> None:
        run = add(ledger, "r")
        with pytest.raises(NotFoundError, match="run r has no attempt 1: it has none yet"):
            ledger.attempt("r", 1)
        with ledger.write() as writer:
            writer.open_attempt(make_attempt("r"))
            writer.change(run, cause="x", text="", attempt=1, at_s=2.0)
        for number in (0, -1, 2, 10**30):
            with pytest.raises(NotFoundError, match=f"run r has no attempt {number}: it has 1"):
                ledger.attempt("r", number)
        with pytest.raises(NotFoundError, match="run r has no attempt 2"), ledger.write() as writer:
            writer.change_attempt("r", 2, message="x")


def open_one(ledger: Ledger, run_id: str, **fields: Any) -> None:
    with ledger.write() as writer:
        writer.open_attempt(make_attempt(run_id, **fields))
