"""What every training worker runs: build → resume → train → score the best → export. The same with and without Ray."""

import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import set_seed

from trainers import run_folder as layout
from trainers.arguments import autocast_dtype, training_arguments
from trainers.checkpoints import Checkpoint, Keeping, Uploader, fetch, list_checkpoints
from trainers.config import S3_SCHEME, TrainConfig, is_absolute
from trainers.data.batches import BatchPlan, BatchShape, bucket_edges
from trainers.data.prepared import ClipReader, PreparedSet
from trainers.data.select import check_scorable, select_training
from trainers.errors import RayscribeError, ResumeError
from trainers.export import export_model
from trainers.monitor import VALIDATION, KeepCheckpoints, ProgressReport, validation_metrics
from trainers.resume import Staging, recover_staged, starting_point
from trainers.run_folder import RunFolder
from trainers.scoring.evaluate import Scorer, ScoringOptions, SplitScore
from trainers.seq2seq import Recogniser, check_label_lengths, encode_labels, load_recogniser, open_exported
from trainers.session import LoneSession, RaySession, Session
from trainers.storage import open_storage
from trainers.trainer import Clips, Reseed, SpeechTrainer


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


@dataclass(frozen=True)
class EvaluateOrder:
    """What a scoring worker is told.

    Attributes:
        config: Says how to score.
        prepared: The split.
        split: Its name.
        model: Folder or URL of a model, or a Hub id.
        folder_url: Where the score is written.
    """

    config: TrainConfig
    prepared: PreparedSet
    split: str
    model: str
    folder_url: str


def train_loop_per_worker(loop_config: dict[str, Any]) -> None:
    """Entry of a Ray Train worker.

    Args:
        loop_config: `order`, a WorkOrder, and `lines`, where lines for the driver go.
    """
    _tell_faults(work, loop_config)


def work_here(order: WorkOrder) -> None:
    """Entry of a process without Ray: alone, or one of torchrun's."""
    work(order, LoneSession.of_this_process())


def evaluate_per_worker(loop_config: dict[str, Any]) -> None:
    """Entry of a Ray Train worker that scores.

    Args:
        loop_config: `order`, an EvaluateOrder, and `lines`, where lines for the driver go.
    """
    _tell_faults(score_order, loop_config)


def _tell_faults(run: Callable[[Any, Session], None], loop_config: dict[str, Any]) -> None:
    """Runs, and lets the driver see at once what went wrong; Ray itself tells it only after its last retry."""
    session = RaySession.of_this_worker(loop_config["lines"])
    try:
        run(loop_config["order"], session)
    except Exception as error:
        session.say(f"worker failed: {type(error).__name__}: {error}")
        raise


def evaluate_here(order: EvaluateOrder) -> None:
    """Entry of a process without Ray that scores."""
    score_order(order, LoneSession.of_this_process())


def score_order(order: EvaluateOrder, session: Session) -> None:
    """Scores one split with a finished model. Every rank calls it."""
    be_quiet()
    config = order.config
    folder = RunFolder(open_storage(order.folder_url, s3_endpoint_url=config.run.s3_endpoint_url))
    recogniser = _open_model(order)
    index = order.prepared.index
    check_scorable(index, context_s=context_of(config, recogniser.context_s), split=order.split)
    lengths = [len(row) for row in encode_labels(recogniser.processor.tokenizer, index["text"].to_pylist())]
    most = recogniser.model.config.max_target_positions
    check_label_lengths(lengths, index["id"].to_pylist(), most, order.split)
    recogniser.model.to("cuda" if config.scaling.use_gpu else "cpu")
    score_split(config, order.prepared, session, folder, recogniser, order.split)
    session.barrier()


def _open_model(order: EvaluateOrder) -> Recogniser:
    if not is_absolute(order.model):
        part = order.config.model.model_copy(update={"init": "pretrained", "name_or_path": order.model})
        return load_recogniser(part, None, order.config.run.seed)
    parent, _, name = order.model.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="rayscribe-model-") as local:
        open_storage(parent, s3_endpoint_url=order.config.run.s3_endpoint_url).download_folder(name, Path(local))
        return open_exported(Path(local))


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
    with tempfile.TemporaryDirectory(prefix="rayscribe-processor-") as description:
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
    plan, clips = plan_training(order, recogniser, session.world_size)
    keeping = Keeping(config.checkpoint.num_to_keep, config.checkpoint.checkpoint_score_attribute)
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


def plan_training(order: WorkOrder, recogniser: Recogniser, workers: int) -> tuple[BatchPlan, Clips]:
    """The batch plan and the clips that its positions mean, the same on every rank."""
    config, prepared = order.config, order.sets["train"]
    part = config.training
    context_s = context_of(config, recogniser.context_s)
    rows = select_training(
        prepared.index,
        min_duration_s=config.data.min_duration_s,
        max_duration_s=config.data.max_duration_s,
        context_s=context_s,
    )
    plan = BatchPlan(
        rows.selection,
        batch_shape(config, workers),
        edges_s=bucket_edges(context_s, bucketed=config.model.max_context_s is not None),
        seed=config.run.seed,
        window_shards=part.shuffle_window_shards,
        full_context_fraction=part.full_context_fraction,
    )
    labels = encode_labels(recogniser.processor.tokenizer, prepared.index["text"].to_pylist())
    return plan, Clips(ClipReader(prepared, cache_bytes=cache_bytes(config)), labels)


def batch_shape(config: TrainConfig, workers: int) -> BatchShape:
    """The batch shape of a config on this many workers."""
    part = config.training
    return BatchShape.resolve(
        workers=workers,
        per_device=part.per_device_train_batch_size,
        accumulation=part.gradient_accumulation_steps,
        global_batch_size=part.global_batch_size,
        max_batch_duration_s=part.max_batch_duration_s,
    )


def context_of(config: TrainConfig, model_context_s: float) -> float:
    """Seconds of the longest input that is trained on and scored."""
    return min(float(config.model.max_context_s or model_context_s), model_context_s)


def cache_bytes(config: TrainConfig) -> int:
    """Bound of a node's copy of shards."""
    return round(config.data.local_cache_gb * 1e9)


def scoring_options(config: TrainConfig, model_context_s: float, *, full_context: bool = False) -> ScoringOptions:
    """How a split is scored; with `full_context`, every clip padded to the model's whole context."""
    bucketed = config.model.max_context_s is not None and not full_context
    context_s = model_context_s if full_context else context_of(config, model_context_s)
    return ScoringOptions(
        batch_size=config.training.per_device_eval_batch_size,
        max_length=config.training.generation_max_length,
        num_beams=config.training.generation_num_beams,
        normalize=config.data.do_normalize_eval,
        edges_s=bucket_edges(context_s, bucketed=bucketed),
        autocast=autocast_dtype(config),
    )


def score_split(
    config: TrainConfig,
    prepared: PreparedSet,
    session: Session,
    folder: RunFolder,
    recogniser: Recogniser,
    split: str,
) -> dict[str, Any]:
    """Scores a split and writes its two files; for a bucketed model with the whole context's score beside it."""
    scorer = Scorer(prepared, recogniser, session, cache_bytes=cache_bytes(config))
    result = scorer.score(scoring_options(config, recogniser.context_s), what=f"score {split}")
    totals: dict[str, Any] = {"split": split, **result.score.to_json_dict(), "loss": result.loss}
    if config.model.max_context_s is not None:
        whole_options = scoring_options(config, recogniser.context_s, full_context=True)
        whole = scorer.score(whole_options, what=f"score {split} at {recogniser.context_s:g} s")
        totals["full_context"] = {
            "context_s": recogniser.context_s,
            **whole.score.to_json_dict(),
            "loss": whole.loss,
        }
    if session.leads:
        write_split(folder, split, totals, result)
    return totals


def write_split(folder: RunFolder, split: str, totals: Mapping[str, Any], result: SplitScore) -> None:
    """Writes evaluation/<split>.json and .jsonl."""
    folder.write_evaluation(split, totals, (item.to_json_dict() for item in result.utterances))


def be_quiet() -> None:
    """Leaves one voice: ours."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def _finish(order: WorkOrder, session: Session, folder: RunFolder, staging: Staging) -> None:
    """Scores the best checkpoint on the test split and exports it."""
    config = order.config
    checkpoints = folder.storage.sub(layout.CHECKPOINTS)
    keeping = Keeping(config.checkpoint.num_to_keep, config.checkpoint.checkpoint_score_attribute)
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
