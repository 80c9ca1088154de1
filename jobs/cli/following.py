"""Following a run: its states and its logs as they come, over retries and lost connections, to its end."""

import sys
from collections.abc import Callable

import typer

from jobs.answers import LogPage
from jobs.cli.session import Session
from jobs.errors import ServiceError
from jobs.model import Run, RunState

Show = Callable[[str], None]
STOPPED_EXIT_CODE = 143


class Follower:
    """Shows what is new of one run."""

    def __init__(self, session: Session, run_id: str, *, source: str | None, attempt: int | None = None):
        """Begins before the first line.

        Args:
            session: Where the run is.
            run_id: Its name.
            source: `driver`, `rank-<n>`, or None for all.
            attempt: Only this attempt. None: the newest, then those after it.
        """
        self._session, self._run_id, self._source, self._only = session, run_id, source, attempt
        self._attempt = attempt
        self._cursor: str | None = None
        self._shown_state: tuple[RunState, str] | None = None
        self._lost = False
        self._drained = False

    def run_to_end(self, *, states: bool) -> Run:
        """Follows until the run has ended and its last line is shown.

        Args:
            states: Whether changes of state are told, on standard error.
        """
        self._session.drive(lambda: self._step(states))
        return self._session.front.run(self._run_id)

    def show_new(self) -> None:
        """Shows what has been printed so far."""
        while self._page().lines:
            pass

    def _step(self, states: bool) -> bool:
        try:
            run = self._session.front.run(self._run_id)
            if states:
                self._tell(run)
            self._show_logs(run)
        except ServiceError as error:
            if not self._lost:
                typer.echo(f"{error}; waiting for it", err=True)
            self._lost = True
            return False
        self._lost = False
        return self._drained and (run.state.ended or self._only is not None)

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
        page = self._session.front.logs(self._run_id, attempt=self._attempt, source=self._source, cursor=self._cursor)
        self._attempt, self._cursor = page.attempt, page.cursor
        for line in page.lines:
            typer.echo(line.text if self._source is not None else f"[{line.source}] {line.text}")
        sys.stdout.flush()
        return page

    def _tell(self, run: Run) -> None:
        if run.state == RunState.SUCCEEDED:
            return  # the driver's last line says it better
        # Steps and losses come with the log; a state is told once, and what a waiting run waits for.
        told = (run.state, run.reason if run.state.waiting or run.state.ended else "")
        if told != self._shown_state:
            typer.echo(f"{run.id}: {run.state} · {run.reason}", err=True)
            self._shown_state = told


def exit_code_of(run: Run) -> int:
    """What a command that waited for a run gives back: the entrypoint's own exit code."""
    if run.state == RunState.SUCCEEDED:
        return 0
    if run.exit_code is not None and run.exit_code != 0:
        # A process that a signal ended has a negative one; shells write 128 + signal.
        return run.exit_code if run.exit_code > 0 else 128 - run.exit_code
    return STOPPED_EXIT_CODE if run.state == RunState.STOPPED else 1
