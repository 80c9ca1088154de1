import pytest

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import Ledger
from jobs.model import ENDED, HOLDING, WAITING, RunState
from tests.jobs.ledger.builders import add, add_in_state, move_to


class TestStopping:
    @pytest.mark.parametrize("state", sorted(WAITING))
    def test_a_waiting_run_is_stopped_at_once(self, ledger: Ledger, state: RunState) -> None:
        run = move_to(ledger, add(ledger, "r"), state, not_before_s=5000.0)
        stopped = ledger.requests.request_stop("r", by="ben", at_s=3000.0)
        assert stopped == ledger.run("r")
        assert (stopped.state, stopped.exit_code, stopped.ended_s) == (RunState.STOPPED, None, 3000.0)
        assert (stopped.stop_requested_s, stopped.not_before_s) == (3000.0, None)
        assert "ben" in stopped.reason
        event = ledger.events("r")[-1]
        assert (event.cause, event.before, event.state) == ("stop_requested", state, RunState.STOPPED)
        assert "ben" in event.text
        assert stopped.version == run.version + 1

    @pytest.mark.parametrize("state", sorted(HOLDING))
    def test_a_run_that_holds_its_gang_is_asked_once(self, ledger: Ledger, state: RunState) -> None:
        run = add_in_state(ledger, "r", state)
        asked = ledger.requests.request_stop("r", by="ben", at_s=3000.0)
        assert (asked.state, asked.stop_requested_s, asked.ended_s) == (state, 3000.0, None)
        assert ledger.requests.request_stop("r", by="eva", at_s=3001.0) == asked == ledger.run("r")
        events = [event for event in ledger.events("r") if event.cause == "stop_requested"]
        assert [(event.before, event.state) for event in events] == [(state, state)]
        assert asked.version == run.version + 1

    @pytest.mark.parametrize("state", sorted(ENDED))
    def test_a_run_that_has_ended_stays_as_it_is(self, ledger: Ledger, state: RunState) -> None:
        run, events = add_in_state(ledger, "r", state), ledger.events("r")
        assert ledger.requests.request_stop("r", by="ben", at_s=3000.0) == run == ledger.run("r")
        assert ledger.events("r") == events

    def test_a_run_that_is_not_there_is_said_so(self, ledger: Ledger) -> None:
        with pytest.raises(NotFoundError, match="no run is named r"):
            ledger.requests.request_stop("r", by="ben", at_s=1.0)


class TestReopening:
    @pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED])
    def test_a_lost_run_is_queued_again(self, ledger: Ledger, state: RunState) -> None:
        lost = move_to(
            ledger, add(ledger, "r"), state, attempt=4, exit_code=3, stop_requested_s=2500.0, not_before_s=2600.0
        )
        assert lost.ended_s is not None
        again = ledger.requests.reopen("r", by="ben", at_s=3000.0)
        assert again == ledger.run("r")
        assert (again.state, again.queued_s, again.submitted_s) == (RunState.QUEUED, 3000.0, lost.submitted_s)
        assert [again.ended_s, again.exit_code, again.stop_requested_s, again.not_before_s] == [None] * 4
        assert again.attempt == 4
        event = ledger.events("r")[-1]
        assert (event.cause, event.before, event.state, event.at_s) == ("resumed", state, RunState.QUEUED, 3000.0)
        assert "ben" in event.text

    @pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.FAILED, RunState.STOPPED}))
    def test_any_other_run_is_refused(self, ledger: Ledger, state: RunState) -> None:
        run = add_in_state(ledger, "r", state)
        with pytest.raises(ConflictError, match=f"run r is {state}"):
            ledger.requests.reopen("r", by="ben", at_s=3000.0)
        assert ledger.run("r") == run

    def test_a_run_that_is_not_there_is_said_so(self, ledger: Ledger) -> None:
        with pytest.raises(NotFoundError, match="no run is named r"):
            ledger.requests.reopen("r", by="ben", at_s=1.0)
