"""What every training worker runs: resume → build → train → finish. The same with and without Ray."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trainers.distributed.session import LocalSession, Session
from trainers.errors import FencedError, RegroupError, StoppedError
from trainers.models.adaptation.lora import merge_once_a_node
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import fetch_weights, starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.training.arguments import silence_libraries
from trainers.training.loop import Loop, build, train
from trainers.training.rank import Rank, Start, WorkOrder
from trainers.training.result import finish
from trainers.training.strategies.zero import sharding_process


def work_here(order: WorkOrder) -> None:
    """Entry of a process without Ray: a single one, or one of torchrun's."""
    work(order, LocalSession.of_this_process())


def work(order: WorkOrder, session: Session, watch: Callable[[Loop], None] = lambda _: None) -> None:
    """Trains, scores and exports one run. Every rank calls it.

    Args:
        order: The work order of all workers.
        session: The ranks.
        watch: Called with what training is built of, before it begins.

    Raises:
        FencedError: another attempt has taken the run over.
        StoppedError: training was stopped on request, and its last checkpoint is stored.
        RegroupError: the ranks ended on request so that others go on, from a checkpoint that is stored.
    """
    silence_libraries()
    with _entered(order, session) as rank:
        start = resume(rank)
        weights = begin_from(rank) if start is None else None
        config = order.config
        with sharding_process(config.strategy, on_gpu=config.scaling.use_gpu), session.stoppable():
            stopped = _train(build(rank, start, weights), watch)
            if stopped is not None:
                reason = session.broadcast(session.regroup_reason, "asking why training ends")
                if reason is not None:
                    raise RegroupError(f"{reason}; {stopped}")
                raise StoppedError(f"{stopped}; the same command, or `rayscribe resume`, continues")
        free_memory()
        finish(rank)


def _train(loop: Loop, watch: Callable[[Loop], None]) -> str | None:
    watch(loop)
    return train(loop)


@contextmanager
def _entered(order: WorkOrder, session: Session) -> Iterator[Rank]:
    """Opens what a rank works with; frees the node's disk at the end, unless a later group may need what is staged."""
    staging = Staging.open(order.run_id, session, session.group)
    writer = GroupWriter.of(RunFolder.of(order.config), order.attempt, staging.group)
    try:
        with StatusWriter(writer.folder, order.attempt if session.is_main_process else None) as status:
            yield Rank(order, session, staging, writer, status)
    except (FencedError, StoppedError, RegroupError):
        if session.local_rank == 0:
            staging.remove()
        raise
    finally:
        # A process that goes on, such as a notebook, may begin the next attempt.
        staging.release()
    if session.local_rank == 0:
        staging.remove()


def free_memory() -> None:
    """Frees model, gradients and optimizer of the training that has ended, whose objects refer to each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def resume(rank: Rank) -> Start | None:
    """Takes over from the worker group before, and fetches the run's checkpoint to go on from; None: it has none."""
    elastic = {"workers": rank.session.world_size} if rank.config.scaling.is_elastic else {}
    rank.status.show(Phase.TRAINING, detail="loading the model and the last checkpoint", **elastic)
    take_over(rank.staging, rank.writer, rank.keeping, rank.session, numbered=rank.order.numbered)
    found = starting_point(rank.staging, rank.writer, rank.session)
    start = Start(*found) if found is not None else None
    resized = rank.session.broadcast(
        lambda: rank.writer.resize(start.checkpoint.step if start is not None else 0, rank.session.world_size),
        "entering the number of workers",
    )
    if resized is not None:
        rank.session.print_from_main(resized)
    return start


def begin_from(rank: Rank) -> Start | None:
    """Fetches the checkpoint whose weights the run begins with; None: it begins with the model's own."""
    if rank.order.weights is None:
        return None
    options = rank.config.run.storage_options
    checkpoint, local = fetch_weights(rank.order.weights, options, rank.staging, rank.session)
    return Start(checkpoint, merge_once_a_node(local, rank.session))
