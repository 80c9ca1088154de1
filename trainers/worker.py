"""What every training worker runs: build → resume → train → score the best → export. The same with and without Ray."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import set_seed

from trainers import run_folder as layout
from trainers.arguments import training_arguments
from trainers.checkpoints import Checkpoint, Keeping, Uploader, fetch, list_checkpoints
from trainers.config import S3_SCHEME, TrainConfig
from trainers.data.batches import BatchPlan
from trainers.data.prepared import PreparedSet
from trainers.errors import RayscribeError, ResumeError
from trainers.export import export_model
from trainers.monitor import VALIDATION, KeepCheckpoints, ProgressReport, validation_metrics
from trainers.planning import cache_bytes, plan_training, scoring_options
from trainers.resume import Staging, recover_staged, starting_point
from trainers.run_folder import RunFolder
from trainers.scoring.evaluate import Scorer
from trainers.scoring_worker import score_split
from trainers.seq2seq import Recogniser, load_recogniser, open_exported
from trainers.session import LoneSession, Session, be_quiet, run_on_worker
from trainers.trainer import Reseed, SpeechTrainer


@dataclass(frozen=True)
class WorkOrder:
    """Everything that a worker is told.

    Attributes:
        config: The config, run name and paths settled.
        sets: Prepared set of each split.
        attempt: Number of this attempt.
        run_id: Unique name of the run.
    """

    config: TrainConfig
    sets: Mapping[str, PreparedSet]
    attempt: int
    run_id: str


def train_loop_per_worker(loop_config: dict[str, Any]) -> None:
    """Entry of a Ray Train worker.

    Args:
        loop_config: `order`, a WorkOrder, and `lines`, where lines for the driver go.
    """
    run_on_worker(work, loop_config)


def work_here(order: WorkOrder) -> None:
    """Entry of a process without Ray: alone, or one of torchrun's."""
    work(order, LoneSession.of_this_process())


def work(order: WorkOrder, session: Session) -> None:
    """Trains, scores and exports one run. Every rank calls it."""
    be_quiet()
    config = order.config
    folder = RunFolder.of(config)
    checkpoints = folder.storage.sub(layout.CHECKPOINTS)
    recogniser = _load(order, folder)
    staging = Staging.open(order.run_id, session)
    recover_staged(staging, checkpoints, session)
    start = starting_point(config.run, staging, checkpoints, session)
    uploader = _train(order, session, recogniser, folder, staging, start)
    session.from_leader(uploader.wait)
    _finish(order, session, folder, staging)
    if session.local_rank == 0:
        staging.remove()


def _load(order: WorkOrder, folder: RunFolder) -> Recogniser:
    if order.config.model.init == "pretrained":
        return load_recogniser(order.config.model, None, order.config.run.seed)
    with TemporaryDirectory(prefix="rayscribe-processor-") as description:
        folder.storage.download_folder(layout.PROCESSOR, Path(description))
        return load_recogniser(order.config.model, Path(description), order.config.run.seed)


def _train(
    order: WorkOrder,
    session: Session,
    recogniser: Recogniser,
    folder: RunFolder,
    staging: Staging,
    start: tuple[Checkpoint, Path] | None,
) -> Uploader:
    config = order.config
    plan, clips = plan_training(config, order.sets["train"], recogniser, session.world_size)
    keeping = _keeping(config)
    uploader = Uploader(
        folder.storage.sub(layout.CHECKPOINTS),
        keeping,
        also=lambda: _upload_tensorboard(folder, order.attempt, staging),
    )
    keeper = KeepCheckpoints(session, uploader if session.leads else None, order.attempt, staging.group)
    report = ProgressReport(session, folder, plan, order.sets["train"].index["duration_s"].to_numpy(), order.attempt)
    scorer = Scorer(order.sets[VALIDATION], recogniser, session, cache_bytes=cache_bytes(config))
    options = scoring_options(config, recogniser.context_s)

    def score_validation() -> dict[str, float]:
        result = scorer.score(options)
        keeper.scored(trainer.state.global_step, result)
        metrics = validation_metrics(result)
        session.report({"step": trainer.state.global_step, **metrics})
        return metrics

    _place_tensorboard(folder, order.attempt, staging)
    trainer = SpeechTrainer(
        recogniser=recogniser,
        arguments=training_arguments(
            config,
            output_dir=staging.folder,
            accumulation=plan.shape.accumulation,
            on_gpu=config.scaling.use_gpu,
        ),
        plan=plan,
        rank=session.rank,
        clips=clips,
        first_step=start[0].step if start is not None else 0,
        evaluate=score_validation,
        callbacks=[Reseed(config.run.seed, session.rank), report, keeper],
    )
    _say_start(session, config, plan, recogniser, start)
    set_seed(config.run.seed)
    if (
        start is not None
        and start[0].step >= _last_step(config, plan)
        and not list_checkpoints(folder.storage.sub(layout.CHECKPOINTS))
    ):
        raise ResumeError(
            f"run.resume: {start[0].name} is at step {start[0].step}, and the run ends at {_last_step(config, plan)}: "
            "raise training.max_steps"
        )
    if start is None or start[0].step < _last_step(config, plan):
        trainer.train(resume_from_checkpoint=str(start[1]) if start is not None else None)
    return uploader


def _finish(order: WorkOrder, session: Session, folder: RunFolder, staging: Staging) -> None:
    """Scores the best checkpoint on the test split and exports it."""
    config = order.config
    checkpoints = folder.storage.sub(layout.CHECKPOINTS)
    keeping = _keeping(config)
    best: Checkpoint | None = session.from_leader(lambda: keeping.best(list_checkpoints(checkpoints)))
    if best is None:
        raise RayscribeError(
            f"{checkpoints.url()}: training ended without a checkpoint; this is a bug, please report it"
        )
    local = staging.folder / "best"
    if session.local_rank == 0:
        fetch(checkpoints, best.name, local)
    session.barrier()
    test = None
    if "test" in order.sets:
        recogniser = open_exported(local)
        recogniser.model.to("cuda" if config.scaling.use_gpu else "cpu")
        test = score_split(config, order.sets["test"], session, folder, recogniser, "test")
    if session.leads:
        for name in (f"{VALIDATION}.json", f"{VALIDATION}.jsonl"):
            folder.storage.upload_file(local / name, f"{layout.EVALUATION}/{name}")
        export_model(folder, config, best, local, test)
        folder.write_json(
            layout.RESULT,
            {
                "best_checkpoint": best.name,
                "best_step": best.step,
                "validation": best.metrics,
                "test": test,
                "test_data": order.sets["test"].key if "test" in order.sets else None,
                "max_steps": config.training.max_steps,
                "num_train_epochs": config.training.num_train_epochs,
                "attempt": order.attempt,
                "finished": layout.now(),
            },
        )
        _upload_tensorboard(folder, order.attempt, staging)
    session.barrier()


def _keeping(config: TrainConfig) -> Keeping:
    return Keeping(config.checkpoint.num_to_keep, config.checkpoint.checkpoint_score_attribute)


def _last_step(config: TrainConfig, plan: BatchPlan) -> int:
    if config.training.max_steps is not None:
        return config.training.max_steps
    assert config.training.num_train_epochs is not None
    return math.ceil(config.training.num_train_epochs * plan.steps_per_epoch)


def _place_tensorboard(folder: RunFolder, attempt: int, staging: Staging) -> None:
    target = (
        str(staging.folder / "tensorboard")
        if folder.url.startswith(S3_SCHEME)
        else f"{folder.url}/{layout.ATTEMPTS}/{attempt}/tensorboard"
    )
    os.environ["TENSORBOARD_LOGGING_DIR"] = target


def _upload_tensorboard(folder: RunFolder, attempt: int, staging: Staging) -> None:
    local = staging.folder / "tensorboard"
    if local.is_dir():
        folder.storage.upload_folder(local, f"{layout.ATTEMPTS}/{attempt}/tensorboard")


def _say_start(
    session: Session,
    config: TrainConfig,
    plan: BatchPlan,
    recogniser: Recogniser,
    start: tuple[Checkpoint, Path] | None,
) -> None:
    if not session.leads:
        return
    millions = sum(weight.numel() for weight in recogniser.model.parameters()) / 1e6
    begin = f"resuming from {start[0].name}, step {start[0].step}" if start is not None else "from the beginning"
    size = plan.shape.global_batch_size
    batch = f"{size} utterances" if size else f"{plan.shape.max_batch_duration_s:g} padded s × {plan.shape.slots}"
    session.say(
        f"train: {millions:.1f} M weights · {session.world_size} workers · {batch} a step · "
        f"{plan.steps_per_epoch} steps an epoch · {_last_step(config, plan)} steps · {begin}"
    )
