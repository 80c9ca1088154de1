"""Who starts now: the queue policy is asked, and what it decided is written down as attempts in the ledger."""

import logging
from collections.abc import Collection

from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.ledger import Changed, Lease, Ledger
from jobs.lifecycle import RunState
from jobs.model import Attempt, AttemptState, Run, submission_id_of
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import Capacity, Decision, decide
from jobs.service.run_folders import RunFolders

log = logging.getLogger(__name__)


def look(ledger: Ledger, clusters: Clusters, queues: QueuesConfig, *, now_s: float) -> Decision:
    """Asks the policy what it would do now, without doing it."""
    waiting = ledger.scheduler.waiting()
    holding = ledger.scheduler.holding()
    capacity = capacities(clusters, {item.address for item in waiting})
    wanted = {name for item in waiting for name in item.depends_on}
    return decide(waiting, holding, capacity, queues, ledger.scheduler.states(wanted), now_s)


def capacities(clusters: Clusters, addresses: Collection[str]) -> dict[str, Capacity]:
    """What each cluster that answers has and can grow to."""
    known = {}
    for address in sorted(addresses):
        try:
            known[address] = clusters.capacity(address)
        except ClusterError as error:
            log.debug("%s", error)  # its runs wait with that as their reason
    return known


def open_attempt(ledger: Ledger, lease: Lease, run_id: str, folders: RunFolders, *, now_s: float) -> Run | None:
    """Opens an attempt of a run that may start, which Ray has yet to be asked for.

    Its number is one that nobody has used in the run folder: an older ledger may have, or a person by hand, and then
    a driver of the same number would find itself overtaken.

    Returns:
        The run with its new attempt; None where somebody was faster, or the user has stopped it.
    """
    run = ledger.run(run_id)
    if not run.state.waiting or run.stop_requested_s is not None:
        return None
    number = max(run.attempt, folders.last_attempt(run)) + 1
    newest = folders.last_checkpoint(run)
    attempt = Attempt(
        run_id=run.id,
        number=number,
        submission_id=submission_id_of(run.id, number),
        state=AttemptState.SUBMITTING,
        gang=run.gang,
        resume_from=newest[0] if newest is not None else None,
        created_s=now_s,
    )
    begin = f"from {newest[0]}" if newest is not None else "from the beginning"
    try:
        with ledger.write(lease) as writer:
            writer.open_attempt(attempt)
            return writer.change(
                run,
                cause="admitted",
                text=f"attempt {number} starts {begin}",
                state=RunState.SETTING_UP,
                reason="being submitted to Ray",
                attempt=number,
                not_before_s=None,
                progress=None,
                at_s=now_s,
            )
    except Changed:
        return None


def refuse(ledger: Ledger, lease: Lease, run_id: str, reason: str, *, now_s: float) -> None:
    """Ends a run that can never start."""
    run = ledger.run(run_id)
    if not run.state.waiting:
        return
    try:
        with ledger.write(lease) as writer:
            writer.change(
                run, cause="refused", text=reason, state=RunState.FAILED, reason=reason, ended_s=now_s, at_s=now_s
            )
    except Changed:
        return
