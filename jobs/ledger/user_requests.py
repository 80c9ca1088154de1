"""What users want of runs: a new one, an end, another try. Each is one transaction, and needs no lease."""

from sqlalchemy import Connection, insert, select

from jobs.errors import ConflictError, NotFoundError
from jobs.ledger import records, scheduler_rows, tables
from jobs.ledger.writer import Writer
from jobs.model import Run, RunState

# What an event says by which a user gives a run another try; its attempt is the last that is forgiven.
RESUMED = "resumed"
_LOST = frozenset({RunState.FAILED, RunState.STOPPED})


def add_run(connection: Connection, run: Run, *, text: str, idempotency_key: str | None) -> Run:
    """See Ledger.add_run."""
    run = run.model_copy(update={"state": RunState.QUEUED, "version": 0})
    asked = records.asked_sha256(run)
    if idempotency_key is not None and (same := run_of_key(connection, run, idempotency_key, asked)) is not None:
        return same
    _refuse_taken(connection, run.id)
    _refuse_hopeless(connection, run)
    values, request = records.insert_values(run)
    values |= {"idempotency_key": idempotency_key, "asked_sha256": asked}
    connection.execute(insert(tables.runs).values(values))
    connection.execute(insert(tables.requests).values(request))
    if run.tags:
        tags = [
            {"run_id": run.id, "tag": tag, "state": run.state, "submitted_s": run.submitted_s}
            for tag in sorted(set(run.tags))
        ]
        connection.execute(insert(tables.run_tags), tags)
    Writer(connection).note(run, before=None, cause="submitted", text=text, at_s=run.submitted_s)
    return run


def request_stop(connection: Connection, run_id: str, *, by: str, at_s: float) -> Run:
    """See Ledger.request_stop."""
    run, writer, text = records.find_run(connection, run_id), Writer(connection), f"{by} asked to stop it"
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
    return writer.change(
        run, cause="stop_requested", text=text, reason=f"stopping, as {by} asked", stop_requested_s=at_s, at_s=at_s
    )


def reopen(connection: Connection, run_id: str, *, by: str, at_s: float) -> Run:
    """See Ledger.reopen."""
    run = records.find_run(connection, run_id)
    if run.state not in _LOST:
        fix = "its work is done" if run.state == RunState.SUCCEEDED else f"stop it first: `rayscribe stop {run_id}`"
        raise ConflictError(f"run {run_id} is {run.state}; only a failed or stopped run is resumed: {fix}")
    return Writer(connection).change(
        run,
        cause=RESUMED,
        text=f"{by} asked to resume it",
        state=RunState.QUEUED,
        reason=f"resumed by {by}",
        queued_s=at_s,
        ended_s=None,
        exit_code=None,
        stop_requested_s=None,
        not_before_s=None,
        at_s=at_s,
    )


def run_of_key(connection: Connection, run: Run, key: str, asked: str) -> Run | None:
    """The run that this user's key has made already."""
    c = tables.runs.c
    found = select(c.id, c.asked_sha256).where(c.user == run.user, c.idempotency_key == key)
    row = connection.execute(found).one_or_none()
    if row is None:
        return None
    if row.asked_sha256 != asked:
        raise ConflictError(
            f"idempotency key {key} has submitted run {row.id}, which asked for something else: "
            "send a new key with a new request"
        )
    return records.find_run(connection, row.id)


def _refuse_taken(connection: Connection, run_id: str) -> None:
    state = connection.execute(select(tables.runs.c.state).where(tables.runs.c.id == run_id)).scalar_one_or_none()
    if state is None:
        return
    resume = f"continue it (`rayscribe resume {run_id}`), or " if state in _LOST else ""
    raise ConflictError(f"run {run_id} is there already, {state}: {resume}give another name (--set run.name=…)")


def _refuse_hopeless(connection: Connection, run: Run) -> None:
    """Refuses a run that waits for something that is not there, or will never succeed."""
    states = scheduler_rows.states_of(connection, run.depends_on)
    for name in run.depends_on:
        if name not in states:
            missing = records.no_such_run(connection, name)
            raise NotFoundError(f"run {run.id} depends on {name}, but {missing}")
        if states[name] in _LOST:
            raise ConflictError(
                f"run {run.id} depends on {name}, which is {states[name]}: "
                f"resume that one first (`rayscribe resume {name}`), or leave it out of job.depends_on"
            )
