"""The loop that drives runs: observe, ask the policies, act. One controller acts at a time, whoever holds the lease.

Every act is written down before and after, and may be repeated without harm, so that a controller that is killed
anywhere is continued by the next: an attempt is in the ledger before Ray is asked for it, its submission id is derived
from run and number, stopping twice stops once, and logs are archived whole.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event as Signal

from jobs.clusters.job_info import JobInfo
from jobs.clusters.registry import Clusters
from jobs.errors import (
    ClusterError,
    ConflictError,
    JobsError,
    LeaseLostError,
    NotFoundError,
    RefusedError,
    ServiceError,
)
from jobs.ledger import Changed, Lease, Ledger
from jobs.lifecycle import RunState
from jobs.model import STOPPED_EXIT_CODE, Attempt, AttemptState, Cause, Run
from jobs.scheduler.limits import QueuesConfig
from jobs.service.admission import look, open_attempt, refuse
from jobs.service.failure_causes import cause_of, line_of
from jobs.service.log_archive import DriverLogs
from jobs.service.package_store import PackageStore
from jobs.service.retry_policy import judge
from jobs.service.run_folders import RunFolders
from jobs.service.run_status import status_of
from jobs.submission.ray_request import build_request
from trainers.errors import ConfigError, RayscribeError

log = logging.getLogger(__name__)

POLL_S = 1.0
LEASE_S = 10.0
# A stop is tried this long beyond the job's own grace while its cluster does not answer.
GIVEN_UP_S = 600.0


class Controller:
    """Drives all runs of a ledger."""

    def __init__(
        self,
        ledger: Ledger,
        clusters: Clusters,
        packages: PackageStore,
        queues: QueuesConfig,
        *,
        lease: Lease,
        clock: Callable[[], float] = time.time,
        at: Callable[[str], None] = lambda point: None,
    ):
        """Takes what it works with.

        Args:
            ledger: Where everything is written down.
            clusters: Where runs run.
            packages: Their code.
            queues: Caps.
            lease: The right to act, which only one controller holds.
            clock: Seconds since 1970.
            at: Told before and after every side effect, by name; for tests that interrupt it there.
        """
        self._ledger, self._clusters, self._packages, self._queues = ledger, clusters, packages, queues
        self._lease, self._clock, self._at = lease, clock, at
        self._folders = RunFolders()
        self._driver_logs = DriverLogs(clusters, self._folders, clock, at)

    def run(self, stop: Signal, *, poll_s: float = POLL_S) -> None:
        """Drives until told to stop; what goes wrong in one round is logged, and the next one goes on."""
        while not stop.is_set():
            try:
                self.round()
            except LeaseLostError:
                log.warning("another service has taken over; this one watches")
            except JobsError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("a round failed; the next one goes on")
            stop.wait(poll_s)
        self._lease.release()

    def round(self) -> bool:
        """Looks at every live run once and starts those that may; False where another controller holds the lease.

        Raises:
            LeaseLostError: another controller has taken over in between.
        """
        if not self._lease.try_hold():
            return False
        self._clusters.begin_round()
        self._driver_logs.catch_up()
        for run in self._ledger.active_runs():
            self._guarded(run.id, partial(self._advance, run))
            if not self._lease.try_hold():
                return False
        now_s = self._clock()
        decision = look(self._ledger, self._clusters, self._queues, now_s=now_s)
        for run_id, reason in decision.refuse.items():
            self._guarded(run_id, partial(refuse, self._ledger, self._lease, run_id, reason, now_s=now_s))
        for run_id in decision.start:
            self._guarded(run_id, partial(self._start, run_id, now_s))
        return True

    def _guarded(self, run_id: str, act: Callable[[], None]) -> None:
        """One run's trouble is its own, whatever it is; without the lease or the ledger there is none to go on with."""
        try:
            act()
        except (LeaseLostError, ServiceError):
            raise
        except Changed:
            return  # a user changed it meanwhile; the next round sees that
        except ClusterError as error:
            self._cluster_silent(run_id, error)
        except RayscribeError as error:
            self._say(run_id, str(error), cause="error")
        except Exception as error:
            log.exception("%s: a fault of the service; all other runs go on", run_id)
            words = f"a fault of the service, whose log has more: {type(error).__name__}: {error}"[:500]
            self._say(run_id, f"{words}; trying again", cause="fault")

    def _start(self, run_id: str, now_s: float) -> None:
        self._at("ledger.admit:before")
        run = open_attempt(self._ledger, self._lease, run_id, self._folders, now_s=now_s)
        self._at("ledger.admit:after")
        if run is not None:
            self._advance(run)

    def _advance(self, run: Run) -> None:
        attempt = self._ledger.attempt(run.id, run.attempt)
        if attempt.state == AttemptState.SUBMITTING:
            self._submit(run, attempt)
            return
        job = self._clusters.job_info(run.address, attempt.submission_id, run.uid)
        if job.over:
            self._end(run, attempt, job)
            return
        if run.stop_requested_s is not None:
            self._at("ray.stop:before")
            self._clusters.stop(run.address, attempt.submission_id)
            self._at("ray.stop:after")
        self._watch(run, attempt, job)

    def _submit(self, run: Run, attempt: Attempt) -> None:
        """Also for a run whose stop was asked for: a submit that was cut off may still arrive at Ray, to be stopped."""
        try:
            package = self._packages.need(run.package)
            request = build_request(run, attempt.number, package=str(package), resume=self._folders.resume_words(run))
            self._at("ray.submit:before")
            started = self._clusters.submit(request)
            self._at("ray.submit:after")
        except RefusedError as error:
            self._close(run, attempt, Cause.ENVIRONMENT, None, str(error))
            return
        except (NotFoundError, ConflictError, ConfigError) as error:
            self._close(run, attempt, Cause.USER_ERROR, None, str(error))
            return
        how = "" if started else " (it had it already)"
        now_s = self._clock()
        with self._ledger.write(self._lease) as writer:
            writer.change_attempt(run.id, attempt.number, state=AttemptState.SUBMITTED, submitted_s=now_s)
            writer.change(
                run,
                cause="ray_submitted",
                text=f"Ray has taken {attempt.submission_id}{how}",
                reason="Ray sets up the runtime environment",
                at_s=now_s,
            )
        self._at("ledger.submitted:after")

    def _watch(self, run: Run, attempt: Attempt, job: JobInfo) -> None:
        progress = self._folders.progress(run, attempt.number)
        pending = [] if progress is not None and progress.step else self._pending(run, job)
        now_s = self._clock()
        state, reason = status_of(
            job,
            progress,
            pending,
            before=run.state,
            submitted_s=attempt.submitted_s or attempt.created_s,
            run_folder=run.run_folder,
            stopping=run.stop_requested_s is not None,
            now_s=now_s,
        )
        moved = state != run.state
        if moved or reason != run.reason or progress != run.progress:
            with self._ledger.write(self._lease) as writer:
                writer.change(
                    run,
                    cause="phase",
                    text=reason,
                    state=state,
                    reason=reason,
                    progress=progress,
                    at_s=now_s,
                    event=moved,
                )
        self._driver_logs.keep(run, attempt)

    def _pending(self, run: Run, job: JobInfo) -> list[dict[str, float]]:
        try:
            return self._clusters.pending_bundles(run.address, job.ray_job_id)
        except ClusterError as error:
            log.debug("%s: what it waits for is not known: %s", run.id, error)
            return []

    def _end(self, run: Run, attempt: Attempt, job: JobInfo) -> None:
        self._driver_logs.keep_last(run, attempt)
        cause = cause_of(job, stop_requested=run.stop_requested_s is not None)
        exit_code = STOPPED_EXIT_CODE if cause == Cause.STOPPED else job.exit_code
        self._close(run, attempt, cause, exit_code, line_of(job))

    def _cluster_silent(self, run_id: str, error: ClusterError) -> None:
        """Says so; a run that was to stop long ago is given up, so that no cluster that is gone keeps it for ever."""
        run = self._ledger.run(run_id)
        if run.stop_requested_s is None or not run.state.holding:
            self._say(run_id, f"{error}; trying again", cause="cluster_silent")
            return
        until_s = run.stop_requested_s + run.config["job"].get("stop_grace_s", 0) + GIVEN_UP_S
        if self._clock() < until_s:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(until_s))
            self._say(run_id, f"stopping; {error}; trying again, and given up at {at} UTC", cause="cluster_silent")
            return
        attempt = self._ledger.attempt(run.id, run.attempt)
        words = f"its cluster was not reached in the meantime, so its job may run on there: {error}"
        with suppress(Changed):
            self._close(run, attempt, Cause.STOPPED, STOPPED_EXIT_CODE, words, beside=f"; {words}")

    def _close(
        self, run: Run, attempt: Attempt, cause: Cause, exit_code: int | None, message: str, *, beside: str = ""
    ) -> None:
        """Writes down how the attempt ended, and what the policy makes of it.

        Args:
            run: The run.
            attempt: Its newest attempt.
            cause: Why it ended.
            exit_code: Its entrypoint's.
            message: What was said of the end.
            beside: What a user who stopped it must know, beside what it left.
        """
        newest = self._folders.last_checkpoint(run)
        progress = self._folders.progress(run, attempt.number) or run.progress
        now_s = self._clock()
        ended = attempt.model_copy(
            update={
                "state": AttemptState.ENDED,
                "ended_s": now_s,
                "cause": cause,
                "exit_code": exit_code,
                "message": message,
                "last_step": newest[1] if newest is not None else None,
            }
        )
        earlier = [item for item in self._ledger.attempts_that_count(run.id) if item.number < attempt.number]
        verdict = judge([*earlier, ended], run.max_retries)
        over = verdict.state.ended
        if run.stop_requested_s is not None and verdict.state != RunState.SUCCEEDED:
            left = self._folders.left_words(run)
            verdict_state, reason, over = RunState.STOPPED, f"stopped; {left}{beside}", True
            exit_code = STOPPED_EXIT_CODE
        else:
            verdict_state, reason = verdict.state, verdict.reason
            if verdict_state == RunState.SUCCEEDED and progress is not None and progress.detail:
                reason = f"{reason} · {progress.detail}"
        self._at("ledger.end:before")
        with self._ledger.write(self._lease) as writer:
            writer.change_attempt(
                run.id,
                attempt.number,
                **ended.model_dump(include={"state", "ended_s", "cause", "exit_code", "message", "last_step"}),
            )
            writer.change(
                run,
                cause="ended",
                text=f"attempt {attempt.number} ended: {cause} · {reason}",
                state=verdict_state,
                reason=reason,
                exit_code=exit_code if over else None,
                ended_s=now_s if over else None,
                not_before_s=None if over else now_s + verdict.backoff_s,
                progress=progress,
                at_s=now_s,
            )
        self._at("ledger.end:after")

    def _say(self, run_id: str, reason: str, *, cause: str) -> None:
        """Makes trouble the reason that people see, as one event however long it lasts."""
        current = self._ledger.run(run_id)
        if current.reason == reason or current.state.ended:
            return
        try:
            with self._ledger.write(self._lease) as writer:
                writer.change(current, cause=cause, text=reason, reason=reason, at_s=self._clock())
        except Changed:
            return
