"""rayscribe list, status, logs, stop, wait, events, forget, usage: inspects and stops runs."""

import time
from typing import Annotated

import typer

from jobs.cli.completion import run_argument
from jobs.cli.connect import JsonOption, RunName, ServiceOption, open_session
from jobs.cli.follow import Follower, exit_code_of, print_json, wait_for_end
from jobs.cli.output import as_json, echo, event_line, print_table, run_details, runs_table, state_line
from jobs.model import RunFilter, RunState, UsageBy
from trainers.errors import ConfigError

SECONDS_PER_DAY = 86_400.0
PAGE = 500
FIRST_RUN = "rayscribe train jobs/specs/whisper_micro.yaml"


def list_runs(
    state: Annotated[
        list[RunState], typer.Option(help="Only runs in this state; repeatable.", case_sensitive=False)
    ] = [],  # noqa: B006
    queue: Annotated[str | None, typer.Option(help="Only runs of this queue.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Largest number of runs.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Start where the previous page ended.")] = None,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """List runs, newest first, with state, WER and reason.

    Lists runs of the queue, and runs that this user has started without it, by `rayscribe train`, `launch` or task.py.

    Example: rayscribe list --state TRAINING --state QUEUED --tag serbian
    """
    with open_session(service) as session:
        session.refresh()
        page = session.runs.runs(RunFilter(state, queue, user, tag), limit=limit, cursor=cursor)
    if json_output:
        as_json(page)
        return
    if not page.runs:
        filtered = state or queue or user or tag or cursor
        fix = "leave out a filter" if filtered else f"start one: {FIRST_RUN}"
        echo(f"no {'such ' if filtered else ''}runs; {fix}")
        return
    runs_table(page.runs)
    if page.next_cursor is not None:
        echo(f"more: --cursor {page.next_cursor}")


def status(run_id: RunName, service: ServiceOption = None, json_output: JsonOption = False) -> None:
    """Show a run's state, its reason, and its attempts.

    Example: rayscribe status whisper-sr
    """
    with open_session(service) as session:
        session.refresh()
        run, attempts = session.runs.run(run_id), session.runs.attempts(run_id)
    if json_output:
        as_json({"run": run, "attempts": attempts})
    else:
        run_details(run, attempts)


def logs(
    run_id: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the run has ended, across retries.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt. Default: the newest.")] = None,
    source: Annotated[
        str | None, typer.Option(metavar="driver|rank-N", help="Only the driver or one worker. Default: all.")
    ] = None,
    service: ServiceOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Print the logs of the driver and the workers.

    They can be read while the run is active, and after its cluster has ended.

    Example: rayscribe logs whisper-sr -f

    Example: rayscribe logs whisper-sr --attempt 1 --source rank-0
    """
    with open_session(service) as session:
        if not session.runs.run(run_id).queue and source in (None, "driver"):
            echo(
                f"{run_id} was started without a queue: its output is only in its terminal, unless it was started with "
                f"`2>&1 | tee train.log`; its changes of state: rayscribe events {run_id}",
                err=True,
            )
        show = print_json if json_output else None
        follower = Follower(session, run_id, source=source, attempt=attempt, show=show)
        try:
            if follow:
                raise typer.Exit(exit_code_of(follower.run_to_end(states=False)))
            session.refresh()
            follower.show_new()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def stop(
    run_id: RunName,
    until_ended: Annotated[bool, typer.Option("--wait", help="Wait until the run has ended.")] = False,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Stop a run, in any state.

    A run that is training saves a last checkpoint first.

    Example: rayscribe stop whisper-sr --wait
    """
    with open_session(service) as session:
        before = session.runs.run(run_id)
        run = session.runs.stop(run_id)
        # Without a service, only this command passes the stop on to Ray.
        if until_ended or (session.standalone and not run.state.ended):
            run = wait_for_end(session, run_id)
    if json_output:
        as_json(run)
    elif before.state.ended:
        echo(f"{run.id}: has already ended: {run.state} · {run.reason}")
    else:
        echo(state_line(run))


def wait(run_id: RunName, service: ServiceOption = None, json_output: JsonOption = False) -> None:
    """Wait until a run has ended, and exit with its exit code.

    The exit code is that of the run's entrypoint, or 143 if the run was stopped.

    Example: rayscribe wait whisper-sr && rayscribe submit next.yaml
    """
    with open_session(service) as session:
        try:
            run = wait_for_end(session, run_id)
        except KeyboardInterrupt:
            echo(f"\n{run_id} was not stopped; wait again: rayscribe wait {run_id}", err=True)
            raise typer.Exit(130) from None
    if json_output:
        as_json(run)
    else:
        echo(state_line(run))
    raise typer.Exit(exit_code_of(run))


def events(run_id: RunName, service: ServiceOption = None, json_output: JsonOption = False) -> None:
    """List a run's changes of state, with time and reason.

    Example: rayscribe events whisper-sr
    """
    with open_session(service) as session:
        session.refresh()
        found = session.runs.events(run_id, limit=PAGE)
        while more := session.runs.events(run_id, after=found[-1].number if found else 0, limit=PAGE):
            found += more
    if json_output:
        as_json(found)
        return
    for event in found:
        echo(event_line(event))


def forget(
    names: Annotated[list[str] | None, run_argument("Name of a run, or its folder or URL.")] = None,
    gone: Annotated[bool, typer.Option("--gone", help="All runs whose folders do not exist.")] = False,
    service: ServiceOption = None,
) -> None:
    """Remove runs without a queue from this user's list. Their folders stay.

    Example: rayscribe forget --gone
    """
    if bool(names) == gone:
        raise ConfigError("name runs, or give --gone for all runs whose folders do not exist")
    with open_session(service) as session:
        folders = session.runs.forget_gone() if gone else [session.runs.forget(name) for name in names or ()]
    for folder in folders:
        echo(f"forgotten: {folder}")


def usage(
    by: Annotated[UsageBy, typer.Option(help="What to group by.")] = "user",
    days: Annotated[float | None, typer.Option(min=0, help="Count only the last DAYS days. Default: all time.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run.")] = None,
    service: ServiceOption = None,
    json_output: JsonOption = False,
) -> None:
    """Report GPU-hours and CPU-hours.

    Sums are grouped by run, attempt, user, queue or tag.

    Example: rayscribe usage --by tag --days 30
    """
    since_s = time.time() - days * SECONDS_PER_DAY if days is not None else None
    with open_session(service) as session:
        session.refresh()
        rows = session.operations.usage(by, since_s=since_s, run_id=run_id)
    if json_output:
        as_json(rows)
    else:
        head = (by.upper(), "ATTEMPTS", "HOURS", "CPU-HOURS", "GPU-HOURS")
        hours = [[f"{each:.2f}" for each in (row.wall_hours, row.cpu_hours, row.gpu_hours)] for row in rows]
        print_table(head, [(row.key, str(row.attempts), *of) for row, of in zip(rows, hours, strict=True)])
