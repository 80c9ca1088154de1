"""Following a run: its states and its logs as they come, over retries and lost connections, to its end."""

import sys
import time
from collections.abc import Callable

import typer

from jobs.cli.connect import Session
from jobs.errors import ClusterError
from jobs.lifecycle import RunState
from jobs.model import STOPPED_EXIT_CODE, LogLine, LogPage, Run
from trainers.errors import StorageError

Show = Callable[[LogLine], None]
# Logs that cannot be read are waited for, as long as the run lives, and this long afterwards.
PATIENCE_S = 120.0


class Follower:
    """Shows what is new of one run."""

    def __init__(
        self,
        session: Session,
        run_id: str,
        *,
        source: str | None,
        attempt: int | None = None,
        show: Show | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Begins before the first line.

        Args:
            session: Where the run is.
            run_id: Its name.
            source: `driver`, `rank-<n>`, or None for all.
            attempt: Only this attempt. None: the newest, then those after it.
            show: Takes each line. None: prints it, with who printed it where all are shown.
            clock: Seconds from any origin.
        """
        self._session, self._run_id, self._source, self._only = session, run_id, source, attempt
        self._show, self._clock = show or (print_line if source is None else print_text), clock
        self._attempt = attempt
        self._cursor: str | None = None
        self._teller = Teller()
        self._silent_since_s: float | None = None
        self._drained = False

    def run_to_end(self, *, states: bool) -> Run:
        """Follows until the run has ended and its last line is shown.

        Args:
            states: Whether changes of state are told, on standard error.

        Raises:
            NotFoundError: there is no such run.
        """
        self._session.operations.run(self._run_id)
        self._session.drive(lambda: self._step(states))
        return self._session.operations.run(self._run_id)

    def show_new(self) -> None:
        """Shows what has been printed so far, and says so where that is nothing."""
        found = False
        while self._page().lines:
            found = True
        if not found:
            who = self._source or "the driver or a worker"
            typer.echo(f"nothing of {who} in attempt {self._attempt} of {self._run_id}", err=True)

    def _step(self, states: bool) -> bool:
        run = self._session.operations.run(self._run_id)
        if states:
            self._teller.tell(run)
        over = run.state.ended or self._only is not None
        try:
            self._show_logs(run)
        except (ClusterError, StorageError) as error:
            return self._without_logs(error) and over
        self._silent_since_s = None
        return self._drained and over

    def _without_logs(self, error: Exception) -> bool:
        """Whether logs that cannot be read now have been waited for long enough."""
        if self._silent_since_s is None:
            self._silent_since_s = self._clock()
            typer.echo(f"logs: {error}; waiting for them", err=True)
        if self._clock() - self._silent_since_s < PATIENCE_S:
            return False
        typer.echo(f"the rest of the logs was not to be had; later: rayscribe logs {self._run_id}", err=True)
        return True

    def _show_logs(self, run: Run) -> None:
        if run.attempt == 0:
            self._drained = run.state.ended
            return
        if self._attempt is None:
            self._attempt = run.attempt
        while True:
            page = self._page()
            if page.ended and self._only is None and page.attempt < run.attempt:
                self._attempt, self._cursor = page.attempt + 1, None
                typer.echo(f"--- attempt {self._attempt}", err=True)
                continue
            self._drained = page.ended
            if not page.lines:
                return

    def _page(self) -> LogPage:
        page = self._session.operations.logs(
            self._run_id, attempt=self._attempt, source=self._source, cursor=self._cursor
        )
        self._attempt, self._cursor = page.attempt, page.cursor
        for line in page.lines:
            self._show(line)
        sys.stdout.flush()
        return page


class Teller:
    """Tells on standard error how a run gets on: each state once, what a waiting one waits for, what a stop does."""

    def __init__(self) -> None:
        self._told: tuple[RunState, str] | None = None

    def tell(self, run: Run) -> None:
        """Tells what is new."""
        words = ""  # steps and losses come with the log
        if run.state.waiting or run.state.ended:
            words = run.reason
        elif run.stop_requested_s is not None:
            words = run.reason.partition(" · ")[0]
        # Of a success the driver's last line says more.
        if run.state != RunState.SUCCEEDED and (run.state, words) != self._told:
            typer.echo(f"{run.id}: {run.state} · {run.reason}", err=True)
            self._told = (run.state, words)


def wait_for_end(session: Session, run_id: str) -> Run:
    """Waits until a run has ended, and tells meanwhile how it gets on.

    Raises:
        NotFoundError: there is no such run.
    """
    teller = Teller()

    def ended() -> bool:
        run = session.operations.run(run_id)
        if not run.state.ended:
            teller.tell(run)
        return run.state.ended

    session.operations.run(run_id)
    session.drive(ended)
    return session.operations.run(run_id)


def print_line(line: LogLine) -> None:
    """`[rank-0] step 10/200 …`."""
    typer.echo(f"[{line.source}] {line.text}")


def print_text(line: LogLine) -> None:
    """The line as it was printed."""
    typer.echo(line.text)


def print_json(line: LogLine) -> None:
    """One JSON document a line, with `source` and `text`."""
    typer.echo(line.model_dump_json())


def tell_line(line: LogLine) -> None:
    """As `print_line`, on standard error, where standard output is for JSON."""
    typer.echo(f"[{line.source}] {line.text}", err=True)


def exit_code_of(run: Run) -> int:
    """What a command that waited for a run gives back: the entrypoint's own exit code."""
    if run.state == RunState.SUCCEEDED:
        return 0
    if run.exit_code is not None and run.exit_code != 0:
        # A process that a signal ended has a negative one; shells write 128 + signal.
        return run.exit_code if run.exit_code > 0 else 128 - run.exit_code
    return STOPPED_EXIT_CODE if run.state == RunState.STOPPED else 1
