"""What every training worker runs: resume → build → train → finish. The same with and without Ray."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from trainers.config.loader import same_command
from trainers.distributed.session import Session
from trainers.errors import DivergedError, FencedError, RegroupError, StoppedError
from trainers.models.adaptation.lora import merge_once_a_node
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import fetch_weights, starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.training.arguments import check_trackers, silence_libraries
from trainers.training.loop import Loop, build, train
from trainers.training.result import finish
from trainers.training.strategies.sharding import sharding_process
from trainers.training.worker_context import ResumePoint, TrainTask, WorkerContext


def work(task: TrainTask, session: Session, watch: Callable[[Loop], None] = lambda _: None) -> None:
    """Trains, scores and exports one run. Every rank calls it.

    Raises:
        DivergedError: a loss or a weight is no longer finite; the checkpoints from before are stored.
        FencedError: another attempt has taken the run over.
        StoppedError: training was stopped on request, and its last checkpoint is stored.
        RegroupError: the ranks ended on request so that others go on, from a checkpoint that is stored.
    """
    silence_libraries()
    config = task.config
    # Also on the nodes, which need not have the packages of the driver.
    check_trackers(config)
    with _entered(task, session) as context:
        start = resume(context)
        weights = begin_from(context) if start is None else None
        with sharding_process(config.strategy, on_gpu=config.scaling.use_gpu), session.stoppable():
            stopped = _train(build(context, start, weights), watch)
            if stopped is not None:
                reason = session.broadcast(session.regroup_reason, "asking why training ends")
                if reason is not None:
                    raise RegroupError(f"{reason}; {stopped}")
                again = same_command(str(config.run.name))
                raise StoppedError(f"{stopped}; {again}, or `rayscribe resume`, continues")
        free_memory()
        finish(context)


def _train(loop: Loop, watch: Callable[[Loop], None]) -> str | None:
    watch(loop)
    return train(loop)


@contextmanager
def _entered(task: TrainTask, session: Session) -> Iterator[WorkerContext]:
    """Opens what a rank works with; frees the node's disk at the end, unless a later group may need what is staged."""
    staging = Staging.open(task.run_id, session, session.group)
    writer = GroupWriter.of(RunFolder.of(task.config), task.attempt, staging.group)
    if session.local_rank == 0:
        staging.name_run(writer.folder.url)
    try:
        with StatusWriter(writer.folder, task.attempt if session.is_main_process else None) as status:
            yield WorkerContext(task, session, staging, writer, status)
    except (DivergedError, FencedError, StoppedError, RegroupError):
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


def resume(context: WorkerContext) -> ResumePoint | None:
    """Takes over from the worker group before, and fetches the run's checkpoint to go on from; None: it has none."""
    elastic = {"workers": context.session.world_size} if context.config.scaling.is_elastic else {}
    context.status.show(Phase.TRAINING, detail="loading the model and the last checkpoint", **elastic)
    take_over(context.staging, context.writer, context.retention, context.session, numbered=context.task.numbered)
    found = starting_point(context.staging, context.writer, context.session)
    start = ResumePoint(*found) if found is not None else None
    resized = context.session.broadcast(
        lambda: context.writer.resize(start.checkpoint.step if start is not None else 0, context.session.world_size),
        "entering the number of workers",
    )
    if resized is not None:
        context.session.print_from_main(resized)
    return start


def begin_from(context: WorkerContext) -> ResumePoint | None:
    """Fetches the checkpoint whose weights the run begins with; None: it begins with the model's own."""
    if context.task.weights is None:
        return None
    options = context.config.run.storage_options
    checkpoint, local = fetch_weights(context.task.weights, options, context.staging, context.session)
    return ResumePoint(checkpoint, merge_once_a_node(local, context.session))
