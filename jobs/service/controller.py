"""The loop that advances runs: observe, decide, act. Only the controller that holds the lease acts.

    round      for each run that holds its gang: advance; then admit those that may start
    advance    submit | end | request the stop, observe

Every action is recorded before and after, and may be repeated without harm, so that the next controller continues where
one was killed: an attempt is in the ledger before Ray is called, its submission id is derived from run and number, a
second stop changes nothing, and pieces of logs are replaced completely. `run_changes` decides what each step changes.
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
# A step may upload or read a user's large files meanwhile; a controller that takes longer loses its lease.
LONGEST_STEP_S = 120.0
# While its cluster does not respond, a stop is retried for this long beyond the job's own grace period.
ABANDON_AFTER_S = 600.0
# Limits of the package installation's log: Ray repeats the last 50 lines of a failed try, and logs the next one's
# start.
SETUP_LINES = 200
SETUP_BYTES = 100_000
# The cluster decides what an attempt starts from; it is not known here.
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
        """Runs rounds until `stop` is set; errors of a round are logged, and the next one continues."""
        with self._lease.kept(LONGEST_STEP_S):
            while not stop.is_set():
                try:
                    self.round()
                except LeaseLostError:
                    log.warning("another service has taken over; this one is on standby")
                except JobsError as error:
                    log.warning("%s", error)
                except Exception:
                    # Not narrower: a defect that one run's data shows must not end the service for all others.
                    log.exception("a round failed; the next one continues")
                stop.wait(poll_s)
        self._lease.release()

    def round(self, *, submit: bool = True) -> bool:
        """Advances every active run once, then admits waiting ones; returns False if another one holds the lease.

        Without `submit`, no job is submitted, neither of a waiting run nor of one whose submission was interrupted.

        Raises:
            LeaseLostError: another controller has taken over in between.
        """
        if not self._lease.try_hold():
            return False
        self._clusters.begin_round()
        self._driver_logs.begin_round()
        self._folders.begin_round()
        active = self._ledger.active_runs()
        # Each run is first in turn: a slow storage has time for some of its runs only.
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
        """Records errors of one run as its reason; errors of the lease and of the ledger end the round."""
        try:
            act()
        except (LeaseLostError, ServiceError):
            raise
        except RunChangedError:
            return  # a user changed it meanwhile; the next round reads the change
        except ClusterError as error:
            self._cluster_unreachable(run_id, error)
        except RayscribeError as error:
            self._blocked(run_id, str(error), event="error")
        except Exception as error:
            # Not narrower, as in `run`; here the other runs of this round are advanced, too.
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
        """Submits an attempt, even if a stop was requested: an interrupted submission may still arrive at Ray."""
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
        """Returns the zip of the run's code; "" if the nodes have that code, None if the run's package does."""
        if RELEASE is not None and run.code is not None and has_release(run.address, RELEASE):
            # Packages that a job installs may hide those of the nodes.
            brings_packages = JobPart.model_validate(run.config["job"]).runtime_env.tool is not None
            if not brings_packages and run.code == self._packages.put_own_code():
                return ""
        return self._packages.code_of(run)

    def _observe(self, run: Run, attempt: Attempt, job: JobInfo) -> None:
        progress = None
        with suppress(RayscribeError):
            progress = self._folders.progress(run, attempt.number)
        # An attempt that has written a status keeps one: a folder without it means that the storage is not there now.
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
        # The resources it waits for, and how its environment is set up, are left out of the reason where not known.
        with suppress(ClusterError):
            return self._clusters.pending_bundles(run.address, job.ray_job_id)
        return []

    def _setup_failure(self, run: Run, attempt: Attempt, job: JobInfo) -> str:
        """Returns why Ray's last try to set up a pending job failed; Ray itself reports it only when it gives up."""
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
        """Records how the attempt ended, and what follows; after a user's stop, with the note and what the run left."""
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
        """Returns the step of the newest checkpoint and the last status; what cannot be read is as known before."""
        progress = run.progress
        try:
            progress = self._folders.progress(run, attempt.number) or progress
            newest = self._folders.last_checkpoint(run)
        except RayscribeError:
            return (earlier[-1].last_step if earlier else None), progress
        return (newest[1] if newest is not None else None), progress

    def _cluster_unreachable(self, run_id: str, error: ClusterError) -> None:
        """Records the error; gives up a run whose stop is overdue, so that it does not wait for a lost cluster.

        On a cluster that was taken down, the attempt has ended; the run is retried when the cluster is up again.
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
            self._give_up(run, f"no job of it is running: {error}")
            return
        retried_s = stop_grace_s(run.config, run.progress) + ABANDON_AFTER_S
        # A clock that was set back by more than that must not delay the end.
        if abs(self._clock() - run.stop_requested_s) < retried_s:
            reason = f"stopping; {error}; retrying until {format_time(run.stop_requested_s + retried_s)}"
            self._blocked(run_id, reason, event="cluster_unreachable")
            return
        self._give_up(run, f"its cluster could not be reached, so its job may still be running there: {error}")

    def _give_up(self, run: Run, message: str) -> None:
        """Ends a run whose stop was requested, without its cluster."""
        attempt = self._ledger.attempt(run.id, run.attempt)
        with suppress(RunChangedError):
            self._close(run, attempt, Cause.STOPPED, STOPPED_EXIT_CODE, message, note=f"; {message}")

    def _blocked(self, run_id: str, reason: str, *, event: str) -> None:
        with suppress(RunChangedError):
            self._write(run_changes.blocked(self._ledger.run(run_id), reason=reason, event=event, now_s=self._clock()))

    def _write(self, change: RunChange | None) -> Run | None:
        """Writes a change, if there is one; returns the changed run."""
        return None if change is None else run_changes.write(self._ledger, self._lease, change)


def forecast(ledger: Ledger, clusters: Clusters, queues: QueuesConfig, *, now_s: float) -> Decision:
    """Returns the policy's decision about the waiting runs now, without changing anything."""
    waiting = ledger.scheduler.waiting()
    holding = ledger.scheduler.holding()
    known, unreachable = {}, {}
    for address in sorted({item.address for item in waiting}):
        try:
            known[address] = clusters.capacity(address)
        except ClusterError as error:
            unreachable[address] = str(error)  # the reason of the runs that wait for it
    wanted = {name for item in waiting for name in item.depends_on}
    return decide(waiting, holding, known, queues, ledger.scheduler.states(wanted), now_s, unreachable)


def known_checkpoint(run: Run, attempts: Sequence[Attempt]) -> str | None:
    """Returns the newest checkpoint found in the run folder before, "a checkpoint" if unnamed; None if none was."""
    for attempt in reversed(attempts):
        if attempt.last_step is not None:
            return f"checkpoint-{attempt.last_step}"
        if attempt.resume_from is not None:
            return attempt.resume_from
    # Measured during an upload of a checkpoint.
    return "a checkpoint" if run.progress is not None and run.progress.checkpoint_s is not None else None


def admission_of(run: Run, attempts: Sequence[Attempt], folders: RunFolders, *, now_s: float) -> RunChange | None:
    """Returns the new attempt of a run that may start; None if it no longer waits, or a stop was requested.

    Its number is not yet used in the run folder: another ledger, or a user by hand, may have used some, and a driver
    with a used number would be fenced. A checkpoint that the run is known to have is expected even if the service
    cannot see it now: the storage may be mounted on the cluster alone.
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
