"""Which runs start now: calls the scheduling policy with the state of the ledger and the clusters."""

from collections.abc import Sequence

from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.ledger import Ledger
from jobs.model import Attempt, Run
from jobs.scheduler.decision import Decision
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import decide
from jobs.service.run_changes import RunChange, admitted
from jobs.service.run_folders import RunFolders
from trainers.errors import StorageError

# Decided on the cluster; nothing is known here.
UNKNOWN_START = "its newest checkpoint, if there is one: the service cannot read its run folder now"


def forecast(ledger: Ledger, clusters: Clusters, queues: QueuesConfig, *, now_s: float) -> Decision:
    """What the policy decides about the waiting runs now; nothing is changed."""
    waiting = ledger.scheduler.waiting()
    holding = ledger.scheduler.holding()
    known, unreachable = {}, {}
    for address in sorted({item.address for item in waiting}):
        try:
            known[address] = clusters.capacity(address)
        except ClusterError as error:
            unreachable[address] = str(error)  # its runs wait, with this as their reason
    wanted = {name for item in waiting for name in item.depends_on}
    return decide(waiting, holding, known, queues, ledger.scheduler.states(wanted), now_s, unreachable)


def known_checkpoint(run: Run, attempts: Sequence[Attempt]) -> str | None:
    """The newest checkpoint that was found in the run folder before, as far as its name is known; None: none was."""
    for attempt in reversed(attempts):
        if attempt.last_step is not None:
            return f"checkpoint-{attempt.last_step}"
        if attempt.resume_from is not None:
            return attempt.resume_from
    # Measured when one was uploaded.
    return "a checkpoint" if run.progress is not None and run.progress.checkpoint_s is not None else None


def admission_of(run: Run, attempts: Sequence[Attempt], folders: RunFolders, *, now_s: float) -> RunChange | None:
    """The new attempt of a run that may start; None if it no longer waits, or a stop was requested.

    Its number is not used in the run folder yet. Another ledger, or a user by hand, may have used some; a driver with a
    number that is used would be fenced. A checkpoint that the run is known to have is expected also where the service
    does not see it now: the storage may be mounted on the cluster alone.
    """
    if not run.state.waiting or run.stop_requested_s is not None:
        return None
    number = max(run.attempt, folders.last_attempt(run)) + 1
    known = known_checkpoint(run, attempts)
    try:
        newest = folders.last_checkpoint(run)
    except StorageError:
        return admitted(run, number=number, checkpoint=known, start=known or UNKNOWN_START, now_s=now_s)
    checkpoint = newest[0] if newest is not None else known
    return admitted(run, number=number, checkpoint=checkpoint, start=checkpoint or run.beginning, now_s=now_s)
