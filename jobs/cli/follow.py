"""Follows a run to its end: its states and its logs, across retries and lost connections."""

import sys
import time
from collections.abc import Callable

import typer

from jobs.cli.connect import CommandSession
from jobs.cli.output import echo, state_line
from jobs.errors import ClusterError
from jobs.model import STOPPED_EXIT_CODE, LogLine, LogPage, Run, RunState
from trainers.distributed.console import screen
from trainers.distributed.console.events import Stage, StageEnded
from trainers.errors import StorageError

Show = Callable[[LogLine], None]
# Longest wait for unreadable logs after the run has ended; until then there is no limit. Seconds.
LOG_TIMEOUT_S = 120.0


class Follower:
    """Prints the new states and log lines of one run."""

    def __init__(
        self,
        session: CommandSession,
        run_id: str,
        *,
        source: str | None,
        attempt: int | None = None,
        show: Show | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts at the first line of an attempt; None for the newest attempt, then those after it.

        Shows one `source`, or all if None. `show` receives each line; by default, lines are printed.
        """
        self._session, self._run_id, self._source, self._only_attempt = session, run_id, source, attempt
        self._show, self._clock = show or (print_line if source is None else print_text), clock
        self._attempt = attempt
        self._cursor: str | None = None
        self._status = StatusPrinter()
        self._unreadable_since_s: float | None = None
        self._drained = False

    def run_to_end(self, *, states: bool) -> Run:
        """Follows until the run has ended and its last line is shown; with `states`, prints those on standard error."""
        self._session.runs.run(self._run_id)
        self._session.wait_until(lambda: self._step(states))
        return self._session.runs.run(self._run_id)

    def show_new(self) -> None:
        """Shows the output so far; prints a notice if there is none."""
        found = False
        while self._page().lines:
            found = True
        if not found:
            source = self._source or "the driver or a worker"
            echo(f"no output of {source} in attempt {self._attempt} of {self._run_id}", err=True)

    def _step(self, states: bool) -> bool:
        run = self._session.runs.run(self._run_id)
        if states:
            self._status.print_changes(run)
        finished = run.state.ended or self._only_attempt is not None
        try:
            self._show_logs(run)
        except (ClusterError, StorageError) as error:
            return self._log_timeout_passed(error) and finished
        self._unreadable_since_s = None
        return self._drained and finished

    def _log_timeout_passed(self, error: Exception) -> bool:
        """Returns True if the logs have been unreadable for LOG_TIMEOUT_S."""
        if self._unreadable_since_s is None:
            self._unreadable_since_s = self._clock()
            echo(f"logs: {error}; retrying", err=True)
        if self._clock() - self._unreadable_since_s < LOG_TIMEOUT_S:
            return False
        echo(f"the rest of the logs could not be read; try again later: rayscribe logs {self._run_id}", err=True)
        return True

    def _show_logs(self, run: Run) -> None:
        if run.attempt == 0:
            self._drained = run.state.ended
            return
        if self._attempt is None:
            self._attempt = run.attempt
        while True:
            page = self._page()
            if page.ended and self._only_attempt is None and page.attempt < run.attempt:
                self._attempt, self._cursor = page.attempt + 1, None
                echo(f"--- attempt {self._attempt}", err=True)
                continue
            self._drained = page.ended
            if not page.lines:
                return

    def _page(self) -> LogPage:
        page = self._session.runs.logs(self._run_id, attempt=self._attempt, source=self._source, cursor=self._cursor)
        self._attempt, self._cursor = page.attempt, page.cursor
        if page.lines:
            # From now on, the log shows the progress.
            screen.show(StageEnded())
        for line in page.lines:
            self._show(line)
        sys.stdout.flush()
        return page


class StatusPrinter:
    """Prints a run's changes of state on standard error, with the reason of a waiting, stopping or ended run."""

    def __init__(self) -> None:
        self._printed: tuple[RunState, str] | None = None

    def print_changes(self, run: Run) -> None:
        """Prints the state if it, or the relevant part of its reason, has changed."""
        detail = ""  # steps and losses are in the log
        if run.state.waiting or run.state.ended:
            detail = run.reason
        elif run.stop_requested_s is not None:
            detail = run.reason.partition(" · ")[0]
        # The driver's last line reports success in more detail.
        if run.state != RunState.SUCCEEDED and (run.state, detail) != self._printed:
            echo(state_line(run), err=True)
            if not run.state.ended:
                screen.show(Stage(run.id, str(run.state), is_told=False))
            self._printed = (run.state, detail)


def wait_for_end(session: CommandSession, run_id: str) -> Run:
    """Waits until a run has ended, and prints its changes of state meanwhile."""
    status = StatusPrinter()

    def ended() -> bool:
        run = session.runs.run(run_id)
        if not run.state.ended:
            status.print_changes(run)
        return run.state.ended

    session.runs.run(run_id)
    session.wait_until(ended)
    return session.runs.run(run_id)


def print_line(line: LogLine, *, err: bool = False) -> None:
    """Prints a line with its source: `[rank-0] step 10/200 …`."""
    echo(f"[{line.source}] {line.text}", err=err)


def print_text(line: LogLine) -> None:
    """Prints the line without its source."""
    echo(line.text)


def print_json(line: LogLine) -> None:
    """Prints one JSON document per line, with `source` and `text`."""
    typer.echo(line.model_dump_json())


def exit_code_of(run: Run) -> int:
    """Returns the exit code of a command that waited for a run: that of the run's entrypoint."""
    if run.state == RunState.SUCCEEDED:
        return 0
    if run.exit_code is not None and run.exit_code != 0:
        # A process ended by a signal has a negative code; shells report 128 + signal.
        return run.exit_code if run.exit_code > 0 else 128 - run.exit_code
    return STOPPED_EXIT_CODE if run.state == RunState.STOPPED else 1
