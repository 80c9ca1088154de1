"""Changes that users request: a new run, a stop, a resume. None of them needs the lease."""

from sqlalchemy import Connection, insert, select

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import records, tables
from jobs.ledger.database import Database
from jobs.ledger.scheduler_rows import states_of
from jobs.ledger.writer import Writer
from jobs.lifecycle import RunState, name_is_taken
from jobs.model import Run

# The event by which a user gives a run another try: attempts up to the event's own do not count any more.
RESUMED = "resumed"
_UNSUCCESSFUL = frozenset({RunState.FAILED, RunState.STOPPED})


class UserRequests:
    """Changes of runs that users request; each method is one transaction; NotFoundError without such a run."""

    def __init__(self, database: Database):
        self._database = database

    def add_run(self, run: Run, *, text: str, idempotency_key: str | None = None) -> Run:
        """Adds a run, QUEUED, with its first event.

        The run has its id: whoever repeats a request must not make up a new name for it. The same key of the same user
        with the same content gives the run that exists.

        Raises:
            ConflictError: the key was used for something else, the id is taken, or a run in `depends_on` has failed.
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
                tags = [
                    {"run_id": run.id, "tag": tag, "state": run.state, "submitted_s": run.submitted_s}
                    for tag in sorted(set(run.tags))
                ]
                connection.execute(insert(tables.run_tags), tags)
            Writer(connection).add_event(run, before=None, cause="submitted", text=text, at_s=run.submitted_s)
        return run

    def run_of_key(self, run: Run, idempotency_key: str) -> Run | None:
        """The run that this user's key has added already. None: the key is new. Raises as `add_run`."""
        with self._database.reading() as connection:
            return _run_of_key(connection, run, idempotency_key)

    def request_stop(self, run_id: str, *, by: str, at_s: float) -> Run:
        """Requests a run's end: a waiting one is STOPPED at once, one that holds its gang gets `stop_requested_s`.

        A second request, or one for a run that has ended, changes nothing.
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
        """Queues a FAILED or STOPPED run again, behind those that wait.

        Raises:
            ConflictError: it is in another state.
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
    """Rejects a run that depends on one that does not exist, or that did not succeed."""
    states = states_of(connection, run.depends_on)
    for name in run.depends_on:
        if name not in states:
            missing = records.no_such_run(connection, name)
            raise NotFoundError(f"run {run.id} depends on {name}, but {missing}")
        if states[name] in _UNSUCCESSFUL:
            raise ConflictError(
                f"run {run.id} depends on {name}, which is {states[name]}: "
                f"resume that one first (`rayscribe resume {name}`), or leave it out of job.depends_on"
            )
