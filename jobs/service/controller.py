"""The loop that advances runs: observe, decide, act. Only the controller that holds the lease acts.

    round      for each run that holds its gang: advance; then admit waiting runs that may start
    advance    submit | end | request the stop, observe

Every action is recorded before and after, and is idempotent, so that after a kill the next controller continues: an
attempt is in the ledger before Ray is called, its submission id is derived from run and number, a repeated stop changes
nothing, and pieces of logs are replaced completely. `run_changes` decides the changes of each step.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Event as Signal

from jobs.clusters.cluster import PENDING, JobInfo
from jobs.clusters.registry import Clusters, has_release
from jobs.errors import (
    ClusterError,
    ClusterGoneError,
    ConflictError,
    JobLostError,
    JobsError,
    LeaseLostError,
    NotFoundError,
    RefusedError,
    ServiceError,
)
from jobs.ledger import Lease, Ledger, RunChangedError
from jobs.model import STOPPED_EXIT_CODE, Attempt, AttemptState, Cause, Progress, Run
from jobs.scheduler.decision import Decision
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import decide
from jobs.service import run_changes
from jobs.service.failure_causes import cause_of, line_of, line_of_setup
from jobs.service.log_archive import DriverLogArchive
from jobs.service.package_store import PackageStore
from jobs.service.run_changes import RunChange
from jobs.service.run_folders import RunFolders
from jobs.service.run_status import status_of
from jobs.submission.job_spec import JobPart
from jobs.submission.ray_request import build_request, stop_grace_s
from runtime_env.own_code import RELEASE
from trainers.config.wording import format_time
from trainers.errors import ConfigError, RayscribeError

log = logging.getLogger(__name__)

POLL_S = 1.0
LEASE_S = 10.0
# Longest step, which may upload or read a user's large files; after it, the controller loses its lease. Seconds.
LONGEST_STEP_S = 120.0
# While the cluster does not respond, a stop is retried for this time after the job's own grace period. Seconds.
ABANDON_AFTER_S = 600.0
# Limits of what is read from the package installation's log; Ray repeats the last 50 lines of a failed try, and logs
# the start of the next try.
SETUP_LINES = 200
SETUP_BYTES = 100_000
# Text for an attempt's start that only the cluster can determine.
UNKNOWN_START = "its newest checkpoint, if there is one: the service cannot read its run folder now"


class Controller:
    """Advances all runs of a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        clusters: Clusters,
        packages: PackageStore,
        queues: QueuesConfig,
        *,
        lease: Lease,
        clock: Callable[[], float] = time.time,
        hook: Callable[[str], None] = lambda point: None,
    ):
        """Stores its collaborators; tests pass a `hook`, which is called around every side effect with its name."""
        self._ledger, self._clusters, self._packages, self._queues = ledger, clusters, packages, queues
        self._lease, self._clock, self._hook = lease, clock, hook
        self._folders, self._rounds = RunFolders(), 0
        # Has its own RunFolders: a slow log must not look like a storage that does not respond.
        self._driver_logs = DriverLogArchive(clusters, RunFolders(), clock, hook)

    def run(self, stop: Signal, *, poll_s: float = POLL_S) -> None:
        """Runs rounds until `stop` is set; errors of a round are logged, and the next round continues."""
        with self._lease.kept(LONGEST_STEP_S):
            while not stop.is_set():
                try:
                    self.round()
                except LeaseLostError:
                    log.warning("another service has taken over; this one is on standby")
                except JobsError as error:
                    log.warning("%s", error)
                except Exception:
                    # Not narrower, since a bug that one run triggers must not end the service for all others.
                    log.exception("a round failed; the next one continues")
                stop.wait(poll_s)
        self._lease.release()

    def round(self, *, submit: bool = True) -> bool:
        """Advances every active run once, then admits waiting runs; returns False if another controller has the lease.

        Without `submit`, no job is submitted, neither for waiting runs nor for interrupted submissions.

        Raises:
            LeaseLostError: another controller has taken over in between.
        """
        if not self._lease.try_hold():
            return False
        self._clusters.begin_round()
        self._driver_logs.begin_round()
        self._folders.begin_round()
        active = self._ledger.active_runs()
        # Each run is first in turn, since there is only time for some of the runs on a slow storage.
        self._rounds += 1
        first = self._rounds % max(1, len(active))
        for run in (*active[first:], *active[:first]):
            self._isolate_errors(run.id, partial(self._advance, run, submit=submit))
            if not self._lease.try_hold():
                return False
        if submit:
            self._admit()
        return True

    def _admit(self) -> None:
        now_s = self._clock()
        decision = forecast(self._ledger, self._clusters, self._queues, now_s=now_s)
        for run_id, reason in decision.refuse.items():
            self._isolate_errors(run_id, partial(self._refuse, run_id, reason, now_s))
        for run_id in decision.start:
            self._isolate_errors(run_id, partial(self._start, run_id, now_s))

    def _isolate_errors(self, run_id: str, act: Callable[[], None]) -> None:
        """Calls `act`; records errors of the run as its reason, but raises those of the lease and the ledger."""
        try:
            act()
        except (LeaseLostError, ServiceError):
            raise
        except RunChangedError:
            return  # a user changed the run meanwhile; the next round reads the change
        except ClusterError as error:
            self._cluster_unreachable(run_id, error)
        except RayscribeError as error:
            self._blocked(run_id, str(error), event="error")
        except Exception as error:
            # Not narrower, as in `run`, so that the other runs of this round are advanced.
            log.exception("%s: internal error of the service; other runs are not affected", run_id)
            # Without the error's text, which may name paths of this machine.
            reason = f"internal error of the service ({type(error).__name__}), whose log has the details; retrying"
            self._blocked(run_id, reason, event="internal_error")

    def _start(self, run_id: str, now_s: float) -> None:
        self._hook("ledger.admit:before")
        run = self._ledger.run(run_id)
        change = admission_of(run, self._ledger.attempts(run_id), self._folders, now_s=now_s)
        admitted = self._write(change)
        self._hook("ledger.admit:after")
        if admitted is not None:
            self._advance(admitted)

    def _refuse(self, run_id: str, reason: str, now_s: float) -> None:
        self._write(run_changes.refused(self._ledger.run(run_id), reason=reason, now_s=now_s))

    def _advance(self, run: Run, *, submit: bool = True) -> None:
        attempt = self._ledger.attempt(run.id, run.attempt)
        if attempt.state == AttemptState.SUBMITTING:
            if submit:
                self._submit(run, attempt)
            return
        job = self._clusters.job_info(run.address, attempt.submission_id, run.uid)
        if job.ended:
            self._end(run, attempt, job)
            return
        if run.stop_requested_s is not None:
            self._hook("ray.stop:before")
            self._clusters.stop(run.address, attempt.submission_id)
            self._hook("ray.stop:after")
        if self._folders.has_time(run):
            self._observe(run, attempt, job)

    def _submit(self, run: Run, attempt: Attempt) -> None:
        """Submits an attempt, even if a stop was requested, since an interrupted submission may still arrive at Ray."""
        try:
            package = self._packages.verified_path(run.package)
            request = build_request(
                run,
                attempt.number,
                package=str(package),
                resume=self._folders.resume_text(run),
                checkpoint=attempt.resume_from,
                code=self._code_of(run),
            )
            self._hook("ray.submit:before")
            started = self._clusters.submit(request)
            self._hook("ray.submit:after")
        except (RefusedError, NotFoundError, ConflictError, ConfigError) as error:
            cause = Cause.ENVIRONMENT if isinstance(error, RefusedError) else Cause.USER_ERROR
            self._close(run, attempt, cause, None, str(error))
            return
        self._write(run_changes.submitted(run, attempt, started=started, now_s=self._clock()))
        self._hook("ledger.submitted:after")

    def _code_of(self, run: Run) -> str | None:
        """Returns the zip of the run's code; "" if the nodes have that code, None if the run's package has its own."""
        if RELEASE is not None and run.code is not None and has_release(run.address, RELEASE):
            # Packages that a job installs may shadow those of the nodes.
            brings_packages = JobPart.model_validate(run.config["job"]).runtime_env.tool is not None
            if not brings_packages and run.code == self._packages.put_own_code():
                return ""
        return self._packages.code_of(run)

    def _observe(self, run: Run, attempt: Attempt, job: JobInfo) -> None:
        progress = None
        with suppress(RayscribeError):
            progress = self._folders.progress(run, attempt.number)
        # A status file is never removed, so if it is missing later, the storage is not available now.
        unread = progress is None and run.progress is not None and run.progress.phase != ""
        progress = run.progress if unread else progress
        pending = [] if progress is not None and progress.step else self._pending(run, job)
        now_s = self._clock()
        state, reason = status_of(
            job,
            progress,
            pending,
            run=run,
            submitted_s=attempt.submitted_s or attempt.created_s,
            unread=unread,
            now_s=now_s,
            setup_failure=self._setup_failure(run, attempt, job),
        )
        self._write(run_changes.observed(run, state=state, reason=reason, progress=progress, now_s=now_s))
        self._driver_logs.archive(run, attempt)

    def _pending(self, run: Run, job: JobInfo) -> list[dict[str, float]]:
        # If the pending resources are not known, the reason does not mention them.
        with suppress(ClusterError):
            return self._clusters.pending_bundles(run.address, job.ray_job_id)
        return []

    def _setup_failure(self, run: Run, attempt: Attempt, job: JobInfo) -> str:
        """Returns why the last try to set up a pending job failed; "" without one. Ray itself reports it at the end."""
        if job.status == PENDING:
            with suppress(ClusterError):
                end = self._clusters.setup_log_end(run.address, attempt.submission_id, SETUP_LINES, SETUP_BYTES)
                return line_of_setup(end.decode(errors="replace"))
        return ""

    def _end(self, run: Run, attempt: Attempt, job: JobInfo) -> None:
        if not self._driver_logs.archive_last(run, attempt):
            return
        cause = cause_of(job, stop_requested=run.stop_requested_s is not None)
        exit_code = STOPPED_EXIT_CODE if cause == Cause.STOPPED else job.exit_code
        self._close(run, attempt, cause, exit_code, line_of(job))

    def _close(
        self, run: Run, attempt: Attempt, cause: Cause, exit_code: int | None, message: str, *, note: str = ""
    ) -> None:
        """Records the attempt's end and the decision; after a user's stop, with the last checkpoint and the note."""
        earlier = [item for item in self._ledger.attempts_that_count(run.id) if item.number < attempt.number]
        last_step, progress = self._last_known(run, attempt, earlier)
        left = self._folders.left_text(run) + note if run.stop_requested_s is not None else ""
        observed = {"cause": cause, "exit_code": exit_code, "message": message, "last_step": last_step}
        closed = attempt.model_copy(update=observed)
        change = run_changes.ended(run, closed, earlier, progress=progress, left=left, now_s=self._clock())
        self._hook("ledger.end:before")
        self._write(change)
        self._hook("ledger.end:after")

    def _last_known(self, run: Run, attempt: Attempt, earlier: Sequence[Attempt]) -> tuple[int | None, Progress | None]:
        """Returns the step of the newest checkpoint and the last status; if unreadable, the last known values."""
        progress = run.progress
        try:
            progress = self._folders.progress(run, attempt.number) or progress
            newest = self._folders.last_checkpoint(run)
        except RayscribeError:
            return (earlier[-1].last_step if earlier else None), progress
        return (newest[1] if newest is not None else None), progress

    def _cluster_unreachable(self, run_id: str, error: ClusterError) -> None:
        """Records the error; ends a run whose stop is overdue, so that it does not wait for a lost cluster.

        If the cluster was taken down, the attempt has ended, and the run is retried when the cluster is up again.
        """
        run = self._ledger.run(run_id)
        if isinstance(error, ClusterGoneError) and run.state.holding and run.stop_requested_s is None:
            with suppress(RunChangedError):
                self._close(run, self._ledger.attempt(run.id, run.attempt), Cause.CLUSTER_LOST, None, str(error))
            return
        if run.stop_requested_s is None or not run.state.holding:
            self._blocked(run_id, f"{error}; retrying", event="cluster_unreachable")
            return
        if isinstance(error, JobLostError):
            self._give_up(run, f"none of its jobs is running: {error}")
            return
        retried_s = stop_grace_s(run.config, run.progress) + ABANDON_AFTER_S
        # If the clock was set back, this must not delay the end.
        if abs(self._clock() - run.stop_requested_s) < retried_s:
            reason = f"stopping; {error}; retrying until {format_time(run.stop_requested_s + retried_s)}"
            self._blocked(run_id, reason, event="cluster_unreachable")
            return
        self._give_up(run, f"its cluster did not respond, so its job may still be running there: {error}")

    def _give_up(self, run: Run, message: str) -> None:
        """Ends a run whose stop was requested, without calling its cluster."""
        attempt = self._ledger.attempt(run.id, run.attempt)
        with suppress(RunChangedError):
            self._close(run, attempt, Cause.STOPPED, STOPPED_EXIT_CODE, message, note=f"; {message}")

    def _blocked(self, run_id: str, reason: str, *, event: str) -> None:
        with suppress(RunChangedError):
            self._write(run_changes.blocked(self._ledger.run(run_id), reason=reason, event=event, now_s=self._clock()))

    def _write(self, change: RunChange | None) -> Run | None:
        """Writes a change, if any; returns the changed run."""
        return None if change is None else run_changes.write(self._ledger, self._lease, change)


def forecast(ledger: Ledger, clusters: Clusters, queues: QueuesConfig, *, now_s: float) -> Decision:
    """Returns the scheduler's decision about the waiting runs at `now_s`; changes nothing."""
    waiting = ledger.scheduler.waiting()
    holding = ledger.scheduler.holding()
    known, unreachable = {}, {}
    for address in sorted({item.address for item in waiting}):
        try:
            known[address] = clusters.capacity(address)
        except ClusterError as error:
            unreachable[address] = str(error)  # the reason of the runs that wait for this cluster
    wanted = {name for item in waiting for name in item.depends_on}
    return decide(waiting, holding, known, queues, ledger.scheduler.states(wanted), now_s, unreachable)


def known_checkpoint(run: Run, attempts: Sequence[Attempt]) -> str | None:
    """Returns the newest checkpoint that was found before; "a checkpoint" without a known name, None if none was."""
    for attempt in reversed(attempts):
        if attempt.last_step is not None:
            return f"checkpoint-{attempt.last_step}"
        if attempt.resume_from is not None:
            return attempt.resume_from
    # `checkpoint_s` is measured when a checkpoint is uploaded.
    return "a checkpoint" if run.progress is not None and run.progress.checkpoint_s is not None else None


def admission_of(run: Run, attempts: Sequence[Attempt], folders: RunFolders, *, now_s: float) -> RunChange | None:
    """Returns the change with a new attempt of a run that may start; None if it no longer waits, or is to stop.

    The attempt's number is not yet used in the run folder, since another ledger or user may have used some, and a
    driver with a used number would be fenced. If the service cannot read the folder now, the last known checkpoint is
    expected, since the storage may be mounted only on the cluster.
    """
    if not run.state.waiting or run.stop_requested_s is not None:
        return None
    number = max(run.attempt, folders.last_attempt(run)) + 1
    checkpoint = known_checkpoint(run, attempts)
    start = checkpoint or UNKNOWN_START
    with suppress(RayscribeError):
        newest = folders.last_checkpoint(run)
        checkpoint = newest[0] if newest is not None else checkpoint
        start = checkpoint or run.beginning
    return run_changes.admitted(run, number=number, checkpoint=checkpoint, start=start, now_s=now_s)
