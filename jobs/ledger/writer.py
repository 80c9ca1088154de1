"""Writes changes of runs, together with their events; a change fails if the run has changed since it was read.

Requests of users, such as a new run, a stop or a resume, need no lease.
"""

from typing import Any

from sqlalchemy import Connection, and_, insert, or_, select, update

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import records, tables
from jobs.ledger.database import Database
from jobs.ledger.scheduler_rows import states_of
from jobs.model import Attempt, Run, RunState, may_follow, name_is_taken

# Cause of the event of a resumed run; attempts up to the event's attempt no longer count for the retry policy.
RESUMED = "resumed"
_UNSUCCESSFUL = frozenset({RunState.FAILED, RunState.STOPPED})


class RunChangedError(ConflictError):
    """The run has changed since it was read; the caller must read it and decide again."""


class Writer:
    """Writes within one transaction of the ledger; raises NotFoundError for an unknown run or attempt."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def change(
        self,
        run: Run,
        *,
        cause: str,
        text: str,
        at_s: float,
        state: RunState | None = None,
        event: bool = True,
        **fields: Any,
    ) -> Run:
        """Changes fields of a run, which was read before, and returns the changed run.

        The event has a cause (one word for programs), a text (one line for people), and the run's newest attempt. For a
        run that ends, `ended_s` defaults to `at_s`.

        Raises:
            RunChangedError: the run has changed meanwhile.
        """
        after = run.state if state is None else state
        assert may_follow(run.state, after), f"{run.id}: {run.state} is never followed by {after}"
        if after.ended and not run.state.ended:
            fields.setdefault("ended_s", at_s)
        changes = {**fields, "state": after, "updated_s": at_s, "version": run.version + 1}
        changed = run.model_copy(update=changes)
        table = tables.runs
        written = self._connection.execute(
            update(table)
            .where(table.c.id == run.id, table.c.version == run.version)
            .values(changed.model_dump(mode="json", include=set(changes)))
        )
        if written.rowcount == 0:
            current = records.find_run(self._connection, run.id)
            raise RunChangedError(f"run {run.id} has changed meanwhile: it is {current.state} now ({current.reason})")
        if event:
            self.add_event(changed, before=run.state, cause=cause, text=text, at_s=at_s)
        return changed

    def add_event(self, run: Run, *, before: RunState | None, cause: str, text: str, at_s: float) -> None:
        self._connection.execute(
            insert(tables.events).values(
                run_id=run.id,
                attempt=run.attempt,
                at_s=at_s,
                state=run.state,
                before=before,
                cause=cause,
                text=text,
            )
        )

    def open_attempt(self, attempt: Attempt) -> None:
        """Adds an attempt.

        Raises:
            ConflictError: the run has an attempt of this number, or the submission id is taken.
        """
        table, of = tables.attempts, attempt.run_id
        same_number = and_(table.c.run_id == of, table.c.number == attempt.number)
        same_id = table.c.submission_id == attempt.submission_id
        taken = select(table.c.run_id, table.c.number).where(or_(same_number, same_id))
        if (row := self._connection.execute(taken).first()) is not None:
            raise ConflictError(
                f"attempt {attempt.number} of {of} as {attempt.submission_id}: already exists as attempt {row.number} "
                f"of {row.run_id}"
            )
        if self._connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == of)).first() is None:
            raise records.no_such_run(self._connection, of)
        self._connection.execute(insert(table).values(records.attempt_values(attempt)))

    def change_attempt(self, run_id: str, number: int, **fields: Any) -> None:
        table = tables.attempts
        written = self._connection.execute(
            update(table).where(table.c.run_id == run_id, table.c.number == number).values(fields)
        )
        if written.rowcount == 0:
            raise NotFoundError(f"run {run_id} has no attempt {number}")


class UserRequests:
    """Changes of runs that users request. Each method is one transaction, and raises NotFoundError for unknown runs."""

    def __init__(self, database: Database):
        self._database = database

    def add_run(self, run: Run, *, text: str, idempotency_key: str | None = None) -> Run:
        """Adds a run, QUEUED, with its first event.

        The client has chosen the run's id, and must repeat it when it repeats the request. The same key of the same
        user with the same content returns the existing run.

        Raises:
            ConflictError: the key was used for another request, the id is taken, or a run in `depends_on` has failed.
            NotFoundError: a run in `depends_on` does not exist.
        """
        run = run.model_copy(update={"state": RunState.QUEUED, "version": 0})
        with self._database.writing() as connection:
            if idempotency_key is not None and (same := _run_of_key(connection, run, idempotency_key)) is not None:
                return same
            _check_name(connection, run.id)
            _check_dependencies(connection, run)
            values, request = records.insert_values(run)
            values |= {"idempotency_key": idempotency_key, "asked_sha256": records.request_sha256(run)}
            connection.execute(insert(tables.runs).values(values))
            connection.execute(insert(tables.requests).values(request))
            if run.tags:
                tags = [{"run_id": run.id, "tag": tag} for tag in sorted(set(run.tags))]
                connection.execute(insert(tables.run_tags), tags)
            Writer(connection).add_event(run, before=None, cause="submitted", text=text, at_s=run.submitted_s)
        return run

    def run_of_key(self, run: Run, idempotency_key: str) -> Run | None:
        """Returns the run that was already added with this user's key; None for a new key. Raises like `add_run`."""
        with self._database.reading() as connection:
            return _run_of_key(connection, run, idempotency_key)

    def request_stop(self, run_id: str, *, by: str, at_s: float) -> Run:
        """Requests a run's stop: a waiting run is STOPPED at once, a run with its gang gets `stop_requested_s`.

        A repeated request, or one for a run that has ended, changes nothing.
        """
        text = f"{by} requested a stop"
        with self._database.writing() as connection:
            run, writer = records.find_run(connection, run_id), Writer(connection)
            if run.state.waiting:
                return writer.change(
                    run,
                    cause="stop_requested",
                    text=f"{text}; it was waiting",
                    state=RunState.STOPPED,
                    reason=f"stopped by {by} while it waited",
                    exit_code=None,
                    not_before_s=None,
                    stop_requested_s=at_s,
                    at_s=at_s,
                )
            if run.state.ended or run.stop_requested_s is not None:
                return run
            reason = f"stopping, as {by} requested"
            return writer.change(
                run, cause="stop_requested", text=text, reason=reason, stop_requested_s=at_s, at_s=at_s
            )

    def reopen(self, run_id: str, *, by: str, at_s: float) -> Run:
        """Queues a FAILED or STOPPED run again, behind the waiting runs.

        Raises:
            ConflictError: the run has another state.
        """
        with self._database.writing() as connection:
            run = records.find_run(connection, run_id)
            if run.state not in _UNSUCCESSFUL:
                done = run.state == RunState.SUCCEEDED
                fix = "nothing is left to do" if done else f"stop it first: `rayscribe stop {run_id}`"
                raise ConflictError(f"run {run_id} is {run.state}; only a failed or stopped run is resumed: {fix}")
            return Writer(connection).change(
                run,
                cause=RESUMED,
                text=f"{by} resumed it",
                state=RunState.QUEUED,
                reason=f"resumed by {by}",
                queued_s=at_s,
                ended_s=None,
                exit_code=None,
                stop_requested_s=None,
                not_before_s=None,
                at_s=at_s,
            )


def _run_of_key(connection: Connection, run: Run, key: str) -> Run | None:
    c = tables.runs.c
    found = select(c.id, c.asked_sha256).where(c.user == run.user, c.idempotency_key == key)
    row = connection.execute(found).one_or_none()
    if row is None:
        return None
    if row.asked_sha256 != records.request_sha256(run):
        raise ConflictError(
            f"idempotency key {key} has submitted run {row.id}, which requested something else: "
            "send a new key with a new request"
        )
    return records.find_run(connection, row.id)


def _check_name(connection: Connection, run_id: str) -> None:
    state = connection.execute(select(tables.runs.c.state).where(tables.runs.c.id == run_id)).scalar_one_or_none()
    if state is None:
        return
    raise ConflictError(name_is_taken(run_id, RunState(state)))


def _check_dependencies(connection: Connection, run: Run) -> None:
    states = states_of(connection, run.depends_on)
    for name in run.depends_on:
        if name not in states:
            missing = records.no_such_run(connection, name)
            raise NotFoundError(f"run {run.id} depends on {name}, but {missing}")
        if states[name] in _UNSUCCESSFUL:
            raise ConflictError(
                f"run {run.id} depends on {name}, which is {states[name]}: "
                f"resume {name} first (`rayscribe resume {name}`), or leave it out of job.depends_on"
            )
