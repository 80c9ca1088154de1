"""Writes changes of runs: each against the version it was decided on, together with its event."""

from typing import Any

from sqlalchemy import Connection, and_, insert, or_, select, update

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import records, tables
from jobs.lifecycle import RunState, may_follow
from jobs.model import Attempt, Run

_ATTEMPT_FIELDS = frozenset(Attempt.model_fields) - {"run_id", "number", "submission_id", "gang"}


class RunChangedError(ConflictError):
    """The run has changed since it was read; read it again and decide anew."""


class Writer:
    """Writes within one transaction of the ledger; NotFoundError where there is no such run or attempt."""

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
        """Changes a run as it was read when this was decided, and gives it as it is now.

        An event has a cause, one word for a program, and a text, one line for a person; it is about the run's newest
        attempt. Of the other fields of Run, `ended_s` is `at_s` where nothing else is given for a run that ends.

        Raises:
            RunChangedError: somebody else has changed it meanwhile.
        """
        after = run.state if state is None else state
        assert may_follow(run.state, after), f"{run.id}: {run.state} is never followed by {after}"
        assert fields.keys() <= records.CHANGEABLE, f"not for changing: {sorted(fields)}"
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
        if run.tags and after != run.state:
            tags = tables.run_tags
            self._connection.execute(update(tags).where(tags.c.run_id == run.id).values(state=after))
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
                f"attempt {attempt.number} of {of} as {attempt.submission_id}: that is attempt {row.number} of "
                f"{row.run_id} already"
            )
        if self._connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == of)).first() is None:
            raise records.no_such_run(self._connection, of)
        self._connection.execute(insert(table).values(records.attempt_values(attempt)))

    def change_attempt(self, run_id: str, number: int, **fields: Any) -> None:
        assert fields.keys() <= _ATTEMPT_FIELDS, f"not for changing: {sorted(fields)}"
        table = tables.attempts
        written = self._connection.execute(
            update(table).where(table.c.run_id == run_id, table.c.number == number).values(fields)
        )
        if written.rowcount == 0:
            raise NotFoundError(f"run {run_id} has no attempt {number}")
