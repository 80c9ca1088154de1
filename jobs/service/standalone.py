"""Queued runs without a service: a local ledger, and a controller that works while a command runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from jobs.clusters.registry import CachingClusters, Clusters
from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import LeaseLostError
from jobs.ledger import Ledger
from jobs.paths import current_user, default_database
from jobs.scheduler.limits import QueuesConfig
from jobs.service.controller import Controller
from jobs.service.package_store import PackageStore
from jobs.service.queues_file import find_queues
from jobs.service.service import Service
from trainers.distributed.machine import home, process_has_ended, process_name

# After a kill, a command on another machine takes the lease after this time, one on this machine at once. Seconds.
LEASE_S = 5.0
POLL_S = 0.5
# Longest round of a command that only shows runs, if a cluster hangs; the end of the command aborts it, like a kill.
REFRESH_TIMEOUT_S = 10.0
# Longest wait for the cluster's capacity. Seconds.
CAPACITY_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class StandaloneService:
    """A service and a controller in this process."""

    service: Service
    controller: Controller
    packages: PackageStore
    ledger: Ledger
    queues: QueuesConfig

    def refresh(self, *, submit: bool = True) -> bool:
        """Updates the ledger by one round of the controller, unless another process holds the lease.

        Without `submit`, no job is submitted, not even later by a round that timed out. Returns False if a cluster or
        a storage did not respond in time, so that the ledger has the last known state.
        """
        try:
            call_with_timeout(partial(self._round, submit=submit), REFRESH_TIMEOUT_S)
        except CallTimeoutError:
            return False
        return True

    def run_until(self, until: Callable[[], bool]) -> None:
        while True:
            self._round()
            if until():
                return
            time.sleep(POLL_S)

    def _round(self, *, submit: bool = True) -> None:
        with suppress(LeaseLostError):
            self.controller.round(submit=submit)


@contextmanager
def open_local() -> Iterator[StandaloneService]:
    """Opens the ledger of this user on this machine during the block."""
    ledger = Ledger.open(default_database())
    packages = PackageStore(home() / "packages")
    queues = find_queues()
    lease = ledger.lease(process_name(), ttl_s=LEASE_S, is_dead=process_has_ended)
    shown = CachingClusters(wait_s=CAPACITY_TIMEOUT_S)
    service = Service(ledger, shown, packages, queues, user=current_user(), addresses=None)
    try:
        controller = Controller(ledger, Clusters(), packages, queues, lease=lease)
        yield StandaloneService(service, controller, packages, ledger, queues)
    finally:
        lease.release()
        ledger.close()
