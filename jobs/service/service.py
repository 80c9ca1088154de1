"""The service: operations on the runs of a ledger, for the HTTP API and for the command line without a service."""

import copy
import time
import uuid
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from jobs.clusters.managed.cluster_record import default_address
from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError, ConflictError, NotFoundError
from jobs.ledger import Ledger
from jobs.model import ALL_RUNS, Attempt, Event, LogPage, Page, Run, RunFilter, RunState, Usage, UsageBy
from jobs.scheduler.decision import Decision, WaitCause, WaitTotals
from jobs.scheduler.feasibility import never_fits
from jobs.scheduler.limits import QueuesConfig
from jobs.service.controller import forecast
from jobs.service.logs import read_logs
from jobs.service.package_store import PackageStore
from jobs.service.run_folders import RunFolders
from jobs.submission.job_spec import NO_CLUSTER, JobPart
from jobs.submission.run_request import RunRequest, run_of
from trainers.config.storage_location import StorageOptions
from trainers.config.validation import refuse
from trainers.errors import ConfigError, ResourceError

# A forecast is cached for this long, so that a page of a hundred waiting runs computes it once. Seconds.
FORECAST_TTL_S = 2.0

Result = TypeVar("Result")


class Service:
    """The operations on a ledger. Runs are started by the controller."""

    def __init__(
        self,
        ledger: Ledger,
        clusters: Clusters,
        packages: PackageStore,
        queues: QueuesConfig,
        *,
        user: str,
        addresses: Collection[str] | None,
        clock: Callable[[], float] = time.time,
    ):
        """Stores its collaborators.

        `user` is the user who runs the service and may use any storage, and the user of requests unless `as_user` is
        used. Runs may use the clusters in `addresses`, by default the first, or any cluster if None.
        """
        self._ledger, self._clusters, self._packages, self._queues = ledger, clusters, packages, queues
        self._owner = user
        self._user, self._addresses, self._clock = user, list(addresses) if addresses is not None else None, clock
        self._folders = RunFolders()
        self._forecast = Recent[Decision](FORECAST_TTL_S, clock)

    def as_user(self, user: str) -> "Service":
        """Returns this service for the requests of another user."""
        other = copy.copy(self)
        other._user = user
        return other

    def clusters(self) -> list[str]:
        """Returns the known addresses of clusters for runs; the first is the default."""
        if self._addresses is not None:
            return self._addresses
        default = default_address()
        return [default] if default else []

    def has_package(self, sha256: str) -> bool:
        return self._packages.has(sha256)

    def put_package(self, sha256: str, path: Path) -> None:
        self._packages.put(sha256, path)

    def submit(self, run_request: RunRequest, *, idempotency_key: str | None = None) -> Run:
        """Queues a run.

        Raises:
            ConfigError: the config, the queue or the cluster is not valid.
            ResourceError: the gang can never fit; the message has the amounts.
            NotFoundError: the package was not uploaded, or a run in `depends_on` does not exist.
            ConflictError: the run's name is taken.
        """
        run = run_of(
            run_request, uid=uuid.uuid4().hex, user=self._user, address_of=self._address_of, now_s=self._clock()
        )
        self._check_storage(run)
        # A repeated request is not checked again, since the cluster may have changed.
        existing = self._ledger.requests.run_of_key(run, idempotency_key) if idempotency_key is not None else None
        if existing is not None:
            return existing
        if not self._packages.has(run_request.package):
            raise NotFoundError(f"package {run_request.package} was not uploaded: upload it first")
        if run.config["trainer"] == "script" or not self._packages.has_entry(run_request.package):
            run = run.model_copy(update={"code": self._packages.put_own_code()})
        self._check_feasible(run)
        return self._ledger.requests.add_run(run, text=f"submitted by {run.user}", idempotency_key=idempotency_key)

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page:
        page = self._ledger.runs(wanted, limit=limit, cursor=cursor)
        return Page(runs=[self._with_wait_reason(run) for run in page.runs], next_cursor=page.next_cursor)

    def waits(self) -> dict[tuple[str, WaitCause], WaitTotals]:
        return self._decision().waits.totals(self._clock())

    def run(self, run_id: str) -> Run:
        return self._with_wait_reason(self._ledger.run(run_id))

    def attempts(self, run_id: str) -> list[Attempt]:
        return self._ledger.attempts(run_id)

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._ledger.events(run_id, after=after, limit=limit)

    def stop(self, run_id: str) -> Run:
        """Requests a stop: a waiting run stops at once, an active run after it has saved a last checkpoint."""
        return self._ledger.requests.request_stop(run_id, by=self._user, at_s=self._clock())

    def resume(self, run_id: str) -> Run:
        """Queues a failed or stopped run again; its next attempt continues from its last complete checkpoint.

        Raises:
            ConflictError: the run is active, or has succeeded.
        """
        return self._ledger.requests.reopen(run_id, by=self._user, at_s=self._clock())

    def logs(
        self, run_id: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage:
        """Returns the log lines of an attempt since the cursor; raises ConflictError if there is no attempt yet."""
        run = self._ledger.run(run_id)
        number = attempt if attempt is not None else run.attempt
        if number == 0:
            raise ConflictError(f"{run_id} has no attempt yet ({run.state}: {self._with_wait_reason(run).reason})")
        found = self._ledger.attempt(run_id, number)
        return read_logs(
            self._folders,
            run,
            found,
            source=source,
            cursor=cursor,
            driver_log=partial(self._clusters.log, run.address, found.submission_id),
        )

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]:
        """Returns GPU-hours and CPU-hours; active attempts count up to now."""
        return self._ledger.usage.hours(by, now_s=self._clock(), since_s=since_s, run_id=run_id)

    def _address_of(self, job: JobPart) -> str:
        if job.address is None:
            known = self.clusters()
            if not known:
                raise ConfigError(NO_CLUSTER)
            return known[0]
        address = job.address.rstrip("/")
        if self._addresses is not None and address not in self._addresses:
            known = self._addresses
            raise ConfigError(f"job.address: {address} is not a cluster of this service, which has {', '.join(known)}")
        return address

    def _check_storage(self, run: Run) -> None:
        """Rejects folders and servers that are not in queues.yaml, since the service would use its own rights there."""
        if self._user == self._owner:
            return
        options = StorageOptions.of(run.config["run"])
        problems = []
        if not any(_is_below(run.run_folder, root) for root in self._queues.storages):
            listed = ", ".join(self._queues.storages) or "none"
            problems.append(
                f"run.storage_path: {run.run_folder} is not in a storage of this service ({listed}): use one of them, "
                "or ask the service's administrator to list it under storages in its queues.yaml"
            )
        known = {url.rstrip("/") for url in self._queues.s3_endpoints}
        problems += [
            f"run.{field}: {endpoint} is not a server of this service: leave it out, or ask its administrator to "
            "list it under s3_endpoints in its queues.yaml"
            for field, endpoint in options.servers().items()
            if endpoint.rstrip("/") not in known
        ]
        problems += [
            f"run.{field}: the service would also use {name} with its own accounts: leave it out, and set it for the "
            f"job only (job.runtime_env.env_vars.{variable})"
            for field, (name, variable) in options.identities().items()
        ]
        refuse(problems, "submission")

    def _check_feasible(self, run: Run) -> None:
        try:
            capacity = self._clusters.capacity(run.address)
        except ClusterError:
            capacity = None  # the cluster does not respond now; the run waits for it
        reason = never_fits(run.gang, run.queue, self._queues, capacity, run.address)
        if reason is not None:
            raise ResourceError(reason)

    def _decision(self) -> Decision:
        return self._forecast.get(lambda now_s: forecast(self._ledger, self._clusters, self._queues, now_s=now_s))

    def _with_wait_reason(self, run: Run) -> Run:
        if not run.state.waiting:
            return run
        wait = self._decision().waits.get(run.id)
        if wait is None:
            return run
        position = f"position {wait.position} in queue {run.queue}"
        prefix = f"{run.reason} · " if run.state != RunState.QUEUED else ""
        return run.model_copy(update={"reason": f"{prefix}{position} · {wait.reason}"})


def _is_below(location: str, root: str) -> bool:
    parts = location.split("/")
    return ".." not in parts and location.startswith(f"{root.rstrip('/')}/")


class Recent(Generic[Result]):
    """Caches a result for `ttl_s`, so that many callers cost one read; threads may share it."""

    def __init__(self, ttl_s: float, clock: Callable[[], float]):
        self._ttl_s, self._clock = ttl_s, clock
        self._lock = Lock()
        self._kept: tuple[float, Result] | None = None

    def get(self, read: Callable[[float], Result]) -> Result:
        """Returns the cached result, or calls `read` with the current time."""
        with self._lock:
            now_s = self._clock()
            # The clock may have been set back.
            if self._kept is None or not 0 <= now_s - self._kept[0] <= self._ttl_s:
                self._kept = (now_s, read(now_s))
            return self._kept[1]
