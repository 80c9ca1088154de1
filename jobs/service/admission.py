"""Which runs start now: calls the scheduling policy with the state of the ledger and the clusters."""

import logging
from collections.abc import Collection

from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.ledger import Ledger
from jobs.model import Run
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import Capacity, Decision, decide
from jobs.service.run_changes import RunChange, admitted
from jobs.service.run_folders import RunFolders

log = logging.getLogger(__name__)


def forecast(ledger: Ledger, clusters: Clusters, queues: QueuesConfig, *, now_s: float) -> Decision:
    """What the policy decides about the waiting runs now; nothing is changed."""
    waiting = ledger.scheduler.waiting()
    holding = ledger.scheduler.holding()
    capacity = capacities(clusters, {item.address for item in waiting})
    wanted = {name for item in waiting for name in item.depends_on}
    return decide(waiting, holding, capacity, queues, ledger.scheduler.states(wanted), now_s)


def capacities(clusters: Clusters, addresses: Collection[str]) -> dict[str, Capacity]:
    """The capacity of each cluster that responds."""
    known = {}
    for address in sorted(addresses):
        try:
            known[address] = clusters.capacity(address)
        except ClusterError as error:
            log.debug("%s", error)  # its runs wait, with this as their reason
    return known


def admission_of(run: Run, folders: RunFolders, *, now_s: float) -> RunChange | None:
    """The new attempt of a run that may start; None if it no longer waits, or a stop was requested.

    Its number is not used in the run folder yet. Another ledger, or a user by hand, may have used some; a driver with a
    number that is used would be fenced.
    """
    if not run.state.waiting or run.stop_requested_s is not None:
        return None
    number = max(run.attempt, folders.last_attempt(run)) + 1
    newest = folders.last_checkpoint(run)
    return admitted(run, number=number, checkpoint=newest[0] if newest is not None else None, now_s=now_s)
