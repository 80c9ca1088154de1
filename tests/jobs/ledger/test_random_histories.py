"""Random histories of a ledger next to those of a plain model in memory."""

import random
import shutil
import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import Ledger, RunChangedError
from jobs.model import LIFE, Attempt, AttemptState, Event, Gang, Progress, Run, RunFilter, RunState
from tests.jobs.ledger.builders import make_attempt, make_run
from tests.settings import examples

NAMES = ["a", "B", "ab", "a-1", "ž"]
USERS, QUEUES, TAGS, KEYS = ["ana", "ben"], ["default", "night"], ["x", "y"], [None, "k1", "k2"]
# Up to thirty attempts, each rounded to a microsecond.
MAX_ROUNDED_HOURS = 30 * 1e-6 / 3600
LOST = {RunState.FAILED, RunState.STOPPED}
GANGS = [
    Gang(num_workers=workers, resources_per_worker={"CPU": 1.5, "GPU": 1.0}, extra={"CPU": 0.5}) for workers in (1, 4)
]


class Undone(Exception):
    """What a block raises that wants nothing written."""


class Histories(RuleBasedStateMachine):
    """What the ledger should hold, in plain lists; each rule does the same to both."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rayscribe-histories-"))
        self.url = f"sqlite:///{self.folder}/ledger.db"
        self.ledger = Ledger.open(self.url)
        self.runs: dict[str, Run] = {}
        self.keys: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.events: list[tuple[Any, ...]] = []
        self.old: list[Run] = []
        self.now_s = 1000.0

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)

    def tick(self, seconds: float = 1.0) -> float:
        self.now_s += seconds
        return self.now_s

    def note(self, run: Run, before: RunState | None, cause: str) -> None:
        self.events.append((run.id, run.attempt, run.updated_s, run.state, before, cause))

    def became(self, run: Run, cause: str | None, **fields: Any) -> Run:
        """Changes the model's run."""
        changed = run.model_copy(update={**fields, "version": run.version + 1})
        self.runs[run.id] = changed
        self.old.append(run)
        if cause is not None:
            self.note(changed, run.state, cause)
        return changed

    # What users do.

    @rule(
        name=st.sampled_from(NAMES),
        user=st.sampled_from(USERS),
        queue=st.sampled_from(QUEUES),
        tags=st.lists(st.sampled_from(TAGS), max_size=3),
        depends_on=st.lists(st.sampled_from(NAMES), max_size=2),
        key=st.sampled_from(KEYS),
        gang=st.sampled_from(GANGS),
        late=st.booleans(),
    )
    def submit(
        self,
        name: str,
        user: str,
        queue: str,
        tags: list[str],
        depends_on: list[str],
        key: str | None,
        gang: Gang,
        late: bool,
    ) -> None:
        asked = {"user": user, "queue": queue, "tags": tags, "depends_on": depends_on, "gang": gang}
        run = make_run(name, submitted_s=self.tick() if late else self.now_s, **asked)
        known = self.keys.get((user, key)) if key is not None else None
        states = [self.runs[other].state if other in self.runs else None for other in depends_on]
        expected: type[Exception] | None = None
        if known is not None:
            expected = None if known == (name, asked) else ConflictError
        elif name in self.runs:
            expected = ConflictError
        elif states:
            verdicts = [
                NotFoundError if state is None else ConflictError if state in LOST else None for state in states
            ]
            expected = next((verdict for verdict in verdicts if verdict), None)
        if expected is not None:
            with pytest.raises(expected):
                self.ledger.requests.add_run(run, text="", idempotency_key=key)
            return
        answer = self.ledger.requests.add_run(run, text="", idempotency_key=key)
        if known is None:
            self.runs[name], self.attempts[name] = run, []
            self.note(run, None, "submitted")
            if key is not None:
                self.keys[user, key] = (name, asked)
        assert answer == self.runs[name]

    @rule(name=st.sampled_from(NAMES))
    def stop(self, name: str) -> None:
        at_s, run = self.tick(), self.runs.get(name)
        if run is None:
            with pytest.raises(NotFoundError):
                self.ledger.requests.request_stop(name, by="ana", at_s=at_s)
            return
        answer = self.ledger.requests.request_stop(name, by="ana", at_s=at_s)
        fields = {"updated_s": at_s, "stop_requested_s": at_s, "reason": answer.reason}
        if run.state.waiting:
            ended = {"state": RunState.STOPPED, "ended_s": at_s, "exit_code": None, "not_before_s": None}
            self.became(run, "stop_requested", **fields, **ended)
        elif run.state.holding and run.stop_requested_s is None:
            self.became(run, "stop_requested", **fields)
        assert answer == self.runs[name]

    @rule(name=st.sampled_from(NAMES))
    def resume(self, name: str) -> None:
        at_s, run = self.tick(), self.runs.get(name)
        if run is None or run.state not in LOST:
            with pytest.raises(NotFoundError if run is None else ConflictError):
                self.ledger.requests.reopen(name, by="ana", at_s=at_s)
            return
        answer = self.ledger.requests.reopen(name, by="ana", at_s=at_s)
        nothing = dict.fromkeys(("ended_s", "exit_code", "stop_requested_s", "not_before_s"))
        fields = {"state": RunState.QUEUED, "queued_s": at_s, "updated_s": at_s, "reason": answer.reason}
        self.became(run, "resumed", **fields, **nothing)
        assert answer == self.runs[name]

    # What the controller does.

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), event=st.booleans(), undone=st.booleans())
    def change(self, data: st.DataObject, event: bool, undone: bool) -> None:
        at_s, run = self.tick(), data.draw(st.sampled_from(list(self.runs.values())))
        state = data.draw(st.sampled_from([run.state, *sorted(LIFE[run.state])]))
        fields: dict[str, Any] = {
            "reason": data.draw(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)),
            "progress": data.draw(st.sampled_from([None, Progress(phase="TRAINING", step=3, loss=0.1)])),
            "exit_code": data.draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
        }
        try:
            with self.ledger.write() as writer:
                answer = writer.change(run, cause="changed", text="", at_s=at_s, state=state, event=event, **fields)
                if undone:
                    raise Undone
        except Undone:
            return
        ended = {"ended_s": at_s} if state.ended and not run.state.ended else {}
        self.became(run, "changed" if event else None, state=state, updated_s=at_s, **fields, **ended)
        assert answer == self.runs[run.id]

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def change_by_what_was_read_before(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.old))
        with pytest.raises(RunChangedError), self.ledger.write() as writer:
            writer.change(run, cause="too late", text="", at_s=self.tick(), state=run.state)

    @precondition(lambda self: any(run.state.waiting for run in self.runs.values()))
    @rule(data=st.data(), hours=st.floats(0, 100))
    def begin_attempt(self, data: st.DataObject, hours: float) -> None:
        run = data.draw(st.sampled_from([run for run in self.runs.values() if run.state.waiting]))
        at_s, number = self.tick(hours * 3600), len(self.attempts[run.id]) + 1
        attempt = make_attempt(run.id, number, gang=run.gang, created_s=at_s)
        with self.ledger.write() as writer:
            writer.open_attempt(attempt)
            writer.change(run, cause="admitted", text="", at_s=at_s, state=RunState.SETTING_UP, attempt=number)
        self.attempts[run.id].append(attempt)
        self.became(run, "admitted", state=RunState.SETTING_UP, updated_s=at_s, attempt=number)

    @precondition(lambda self: any(self.attempts.values()))
    @rule(data=st.data(), hours=st.floats(0, 100))
    def end_attempt(self, data: st.DataObject, hours: float) -> None:
        name = data.draw(st.sampled_from([name for name, attempts in self.attempts.items() if attempts]))
        ended = {"state": AttemptState.ENDED, "ended_s": self.tick(hours * 3600), "exit_code": 8, "message": "over"}
        with self.ledger.write() as writer:
            writer.change_attempt(name, self.attempts[name][-1].number, **ended)
        self.attempts[name][-1] = self.attempts[name][-1].model_copy(update=ended)

    @rule()
    def open_again(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.url)

    # What both must then say.

    @invariant()
    def the_same_runs(self) -> None:
        newest = sorted(self.runs.values(), key=lambda run: (run.submitted_s, run.id), reverse=True)
        assert self.ledger.runs().runs == newest
        rng = random.Random(len(self.events))
        states, user, tag = rng.sample(sorted(RunState), 5), rng.choice([*USERS, None]), rng.choice([*TAGS, None])
        found, cursor = [], None
        while True:
            page = self.ledger.runs(RunFilter(states=states, user=user, tag=tag), limit=2, cursor=cursor)
            found += page.runs
            if (cursor := page.next_cursor) is None:
                break
        assert found == [
            run
            for run in newest
            if run.state in states and user in (None, run.user) and (tag is None or tag in run.tags)
        ]

    @invariant()
    def the_same_attempts_and_events(self) -> None:
        for name, attempts in self.attempts.items():
            assert self.ledger.attempts(name) == attempts
        events = self.ledger.events(None)
        assert [told(event) for event in events] == self.events
        numbers = [event.number for event in events]
        assert numbers == sorted(set(numbers))

    @invariant()
    def the_same_rows_for_policies(self) -> None:
        runs = self.runs.values()
        assert {row.id: row.need for row in self.ledger.scheduler.waiting()} == {
            run.id: run.gang.total for run in runs if run.state.waiting
        }
        assert {row.id for row in self.ledger.scheduler.holding()} == {run.id for run in runs if run.state.holding}
        assert self.ledger.usage.runs() == Counter((run.queue, run.state) for run in runs)
        assert self.ledger.scheduler.states(NAMES) == {run.id: run.state for run in runs}

    @invariant()
    def the_same_hours(self) -> None:
        since_s, until_s = 1000.0 + (self.now_s - 1000.0) / 3, self.now_s - (self.now_s - 1000.0) / 5
        exact: dict[str, Fraction] = {}
        for attempt in (attempt for attempts in self.attempts.values() for attempt in attempts):
            end_s = attempt.ended_s if attempt.ended_s is not None else until_s
            if attempt.created_s > until_s or end_s < since_s:
                continue
            held_s = Fraction(min(end_s, until_s)) - Fraction(max(attempt.created_s, since_s))
            user = self.runs[attempt.run_id].user
            exact[user] = exact.get(user, Fraction()) + held_s * Fraction(attempt.gang.total["CPU"]) / 3600
        usage = self.ledger.usage.hours("user", now_s=until_s, since_s=since_s)
        assert {item.key: item.cpu_hours for item in usage} == pytest.approx(
            {user: float(hours) for user, hours in exact.items()}, rel=1e-12, abs=MAX_ROUNDED_HOURS
        )


def told(event: Event) -> tuple[Any, ...]:
    """What of an event the model knows."""
    return (event.run_id, event.attempt, event.at_s, event.state, event.before, event.cause)


@pytest.mark.integration
def test_the_ledger_tells_any_history_as_a_plain_model_does() -> None:
    some = settings(
        max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(Histories, settings=some)
