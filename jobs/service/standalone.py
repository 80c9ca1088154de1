"""Without a service: a ledger file of one's own, which whatever command runs drives while it runs."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from jobs.clusters.capacity_cache import CachingClusters
from jobs.clusters.registry import Clusters
from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import LeaseLostError
from jobs.ledger import Ledger
from jobs.ledger.lease import process_has_ended, process_name
from jobs.paths import default_database, home, user_here
from jobs.service.controller import Controller
from jobs.service.operations import Service
from jobs.service.package_store import PackageStore
from jobs.service.queues_file import find_queues

# One that was killed is followed by the next command at once on the same machine, otherwise after this long.
LEASE_S = 5.0
POLL_S = 0.5
# Who only looks does not wait longer for a cluster that hangs; the round is cut off with the command, as by a kill.
LOOK_S = 10.0
# Nor for its size, beside that.
SIZE_S = 5.0


class Local:
    """A service and a controller in this process."""

    def __init__(self, service: Service, controller: Controller, packages: PackageStore):
        """Takes both halves."""
        self.service, self._controller, self.packages = service, controller, packages

    def look(self) -> bool:
        """Brings the ledger up to date, unless another process is doing so.

        Returns:
            False where a cluster or a storage has not answered soon; what is there then is from an earlier look.
        """
        try:
            call_with_timeout(self._round, LOOK_S)
        except CallTimeoutError:
            return False
        return True

    def drive(self, until: Callable[[], bool]) -> None:
        """Drives all runs of the ledger until the condition holds."""
        while True:
            self._round()
            if until():
                return
            time.sleep(POLL_S)

    def _round(self) -> None:
        with suppress(LeaseLostError):
            self._controller.round()


@contextmanager
def open_local(
    database: str | None = None, *, grows_to: Mapping[str, Mapping[str, float]] | None = None
) -> Iterator[Local]:
    """Opens the ledger of this user on this machine, for the length of the block.

    Args:
        database: URL of the ledger. None: see `paths.default_database`.
        grows_to: What each cluster can grow to, by address.

    Raises:
        ServiceError: the ledger cannot be opened.
    """
    ledger = Ledger.open(database or default_database())
    packages = PackageStore(home() / "packages")
    queues = find_queues()
    clusters = Clusters(grows_to)
    lease = ledger.lease(process_name(), ttl_s=LEASE_S, is_dead=process_has_ended)
    service = Service(
        ledger, CachingClusters(grows_to, wait_s=SIZE_S), packages, queues, user=user_here(), addresses=None
    )
    try:
        yield Local(service, Controller(ledger, clusters, packages, queues, lease=lease), packages)
    finally:
        lease.release()
        ledger.close()
