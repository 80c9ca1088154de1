"""What every training worker runs: build → resume → train → score the best → export. The same with and without Ray."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import Seq2SeqTrainingArguments, set_seed
from transformers.trainer import TRAINER_STATE_NAME

from trainers.config.schema import S3_SCHEME, TrainConfig
from trainers.data.batch_plan import BatchPlan
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.coordinated_stop import LastStep
from trainers.distributed.session import LocalSession, Session
from trainers.errors import FencedError, RayscribeError, ResumeError, StoppedError
from trainers.models.export import export_model
from trainers.models.whisper import Recognizer, load_recognizer, open_exported
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.checkpoints import RetentionPolicy, Uploader, fetch
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, accepted_metrics
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.publish import publish
from trainers.run_folder.resume import starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.scoring.scorer import CutShortError, Scorer, ScoringOptions, SplitScore
from trainers.training.arguments import training_arguments
from trainers.training.callbacks import VALIDATION, KeepCheckpoints, MetricsLog, ProgressReport, validation_metrics
from trainers.training.planning import cache_bytes, plan_training, scoring_options
from trainers.training.scoring_worker import score_split
from trainers.training.trainer import Reseed, SpeechTrainer
from trainers.training.worker_setup import run_on_worker, silence_libraries


@dataclass(frozen=True)
class WorkOrder:
    """Everything that a worker is told.

    Attributes:
        config: The config, run name and paths settled.
        sets: Prepared set of each split.
        attempt: Number of this attempt.
        run_id: Unique name of the run.
        processor: Folder of a new model's processor in the run folder. None: a pretrained model's own.
        numbered: Whether a service counts the attempts, see `resume.Staging.others`.
    """

    config: TrainConfig
    sets: Mapping[str, PreparedSet]
    attempt: int
    run_id: str
    processor: str | None
    numbered: bool


def train_loop_per_worker(loop_config: dict[str, Any]) -> str | None:
    """Entry of a Ray Train worker.

    Args:
        loop_config: See `worker_setup.run_on_worker`; `order` is a WorkOrder.

    Returns:
        What a run that was stopped says.
    """
    return run_on_worker(work, loop_config)


def work_here(order: WorkOrder) -> None:
    """Entry of a process without Ray: alone, or one of torchrun's."""
    work(order, LocalSession.of_this_process())


def work(order: WorkOrder, session: Session) -> None:
    """Trains, scores and exports one run. Every rank calls it."""
    silence_libraries()
    folder = RunFolder.of(order.config)
    staging = Staging.open(order.run_id, session, session.group)
    writer = GroupWriter.of(folder, order.attempt, staging.group)
    try:
        with StatusWriter(folder, order.attempt if session.is_main_process else None) as status:
            _work(order, session, writer, staging, status)
    except (FencedError, StoppedError):
        if session.local_rank == 0:
            staging.remove()
        raise
    finally:
        # A process that goes on, such as a notebook, may begin the next attempt.
        staging.release()
    if session.local_rank == 0:
        staging.remove()


def _work(order: WorkOrder, session: Session, writer: GroupWriter, staging: Staging, status: StatusWriter) -> None:
    status.show(Phase.TRAINING, detail="loading the model and the last checkpoint")
    take_over(staging, writer, _keeping(order.config), session, numbered=order.numbered)
    start = starting_point(order.config.run, staging, writer, session)
    with session.stoppable():
        uploader, stopped = _train(order, session, _load(order, writer.folder), writer, staging, start, status)
        session.broadcast(uploader.wait)
        if stopped is not None:
            raise StoppedError(stopped)
    status.show(Phase.EVALUATING, detail="scoring and exporting the best checkpoint")
    _finish(order, session, writer, staging)


def _load(order: WorkOrder, folder: RunFolder) -> Recognizer:
    if order.processor is None:
        return load_recognizer(order.config.model, None, order.config.run.seed)
    with TemporaryDirectory(prefix="rayscribe-processor-") as description:
        folder.storage.download_folder(order.processor, Path(description))
        return load_recognizer(order.config.model, Path(description), order.config.run.seed)


def _train(
    order: WorkOrder,
    session: Session,
    recognizer: Recognizer,
    writer: GroupWriter,
    staging: Staging,
    start: tuple[Checkpoint, Path] | None,
    status: StatusWriter,
) -> tuple[Uploader, str | None]:
    """Trains to the last step, or until a request to stop; then the second of what it gives back says where it is."""
    config, folder = order.config, writer.folder
    plan, clips = plan_training(config, order.sets["train"], recognizer, session.world_size)
    uploader = Uploader(writer, _keeping(config), also=lambda: _upload_tensorboard(folder, order.attempt, staging))
    keeper = KeepCheckpoints(session, uploader if session.is_main_process else None, order.attempt, staging.group)
    log = MetricsLog(writer, session.say)
    durations_s = order.sets["train"].index["duration_s"].to_numpy()
    report = ProgressReport(session, log, plan, durations_s, order.attempt, status)
    first_step = start[0].step if start is not None else 0
    last = LastStep(session, first_step)
    scorer = Scorer(order.sets[VALIDATION], recognizer, session, cache_bytes=cache_bytes(config))
    options = scoring_options(config, recognizer.context_s)

    def score_validation() -> dict[str, float] | None:
        report.scoring()
        result = _score_or_stop(scorer, options, last, trainer)
        return _pass_on(result, trainer.state.global_step, session, keeper) if result is not None else None

    _place_tensorboard(folder, order.attempt, staging)
    trainer = SpeechTrainer(
        recognizer=recognizer,
        arguments=_arguments(config, staging, plan),
        plan=plan,
        rank=session.rank,
        clips=clips,
        first_step=first_step,
        evaluate=score_validation,
        callbacks=[Reseed(config.run.seed, session.rank), report, keeper, last],
    )
    _say_start(session, config, plan, recognizer, start)
    set_seed(config.run.seed)
    if start is not None:
        _refuse_to_begin_at_the_end(start[0], _last_step(config, plan), writer)
        _score_start(order, session, start, keeper, report, _last_step(config, plan))
    if first_step < _last_step(config, plan):
        with last:
            trainer.train(resume_from_checkpoint=str(start[1]) if start is not None else None)
    if last.stopped_at is None:
        return uploader, None
    newest = session.broadcast(lambda: keeper.newest)
    return uploader, _stop_words(last.stopped_at, _last_step(config, plan), newest, folder)


def _stop_words(step: int, last_step: int, checkpoint: str, folder: RunFolder) -> str:
    home = folder.storage.url(layout.CHECKPOINTS)
    return (
        f"stopped at step {step}/{last_step}: {checkpoint} is in {home}; "
        "the same command, or `rayscribe resume`, continues"
    )


def _arguments(config: TrainConfig, staging: Staging, plan: BatchPlan) -> Seq2SeqTrainingArguments:
    return training_arguments(
        config,
        output_dir=staging.folder,
        accumulation=plan.shape.accumulation,
        on_gpu=config.scaling.use_gpu,
    )


def _score_or_stop(
    scorer: Scorer, options: ScoringOptions, last: LastStep, trainer: SpeechTrainer
) -> SplitScore | None:
    """The score of the validation set; None where a request to stop came between."""
    try:
        return scorer.score(options, cut_short=lambda: last.cuts_short(trainer.args))
    except CutShortError:
        last.end_at(trainer.state.global_step)
        return None


def _pass_on(result: SplitScore, step: int, session: Session, keeper: KeepCheckpoints) -> dict[str, float]:
    """Gives a score on the validation set to the checkpoint of its step, and to the engine."""
    keeper.scored(step, result)
    metrics = validation_metrics(result)
    session.report({"step": step, **metrics})
    return metrics


def _refuse_to_begin_at_the_end(start: Checkpoint, last_step: int, writer: GroupWriter) -> None:
    """Refuses a new run from a checkpoint that has no step left to do."""
    if start.step >= last_step and not writer.check().checkpoints:
        raise ResumeError(
            f"run.resume: {start.name} is at step {start.step}, and the run ends at {last_step}: "
            "raise training.max_steps"
        )


def _score_start(
    order: WorkOrder,
    session: Session,
    start: tuple[Checkpoint, Path],
    keeper: KeepCheckpoints,
    report: ProgressReport,
    last_step: int,
) -> None:
    """Scores the checkpoint that a request to stop left where a score was due, as the undisturbed run would have."""
    (checkpoint, local), part = start, order.config.training
    ends = checkpoint.step >= last_step
    if checkpoint.metrics or not (ends or checkpoint.step % part.scoring_steps == 0):
        return
    report.scoring()
    recognizer = open_exported(local)
    recognizer.model.to("cuda" if order.config.scaling.use_gpu else "cpu")
    scorer = Scorer(order.sets[VALIDATION], recognizer, session, cache_bytes=cache_bytes(order.config))
    result = scorer.score(scoring_options(order.config, recognizer.context_s))
    epoch = json.loads((local / TRAINER_STATE_NAME).read_text())["epoch"]
    report.validated(checkpoint.step, last_step, epoch, _pass_on(result, checkpoint.step, session, keeper))
    if ends or checkpoint.step % part.save_steps == 0:
        keeper.keep_again(local, checkpoint.step)


def _finish(order: WorkOrder, session: Session, writer: GroupWriter, staging: Staging) -> None:
    """Scores the best checkpoint on the test split and exports it, into this group's own folder; then shows it."""
    config, folder = order.config, writer.folder
    checkpoints, outputs = folder.storage.sub(layout.CHECKPOINTS), folder.sub(writer.group.outputs)
    keeping = _keeping(config)
    best: Checkpoint | None = session.broadcast(lambda: keeping.best(writer.check().checkpoints))
    if best is None:
        raise RayscribeError(
            f"{checkpoints.url()}: training ended without a checkpoint; this is a bug, please report it"
        )
    local = staging.folder / "best"
    if session.local_rank == 0:
        fetch(checkpoints, best, local)
    session.barrier()
    test = None
    if "test" in order.sets:
        recognizer = open_exported(local)
        recognizer.model.to("cuda" if config.scaling.use_gpu else "cpu")
        test = score_split(config, order.sets["test"], session, outputs, recognizer, "test")

    def deliver() -> None:
        for name in (f"{VALIDATION}.json", f"{VALIDATION}.jsonl"):
            outputs.storage.upload_file(local / name, f"{layout.EVALUATION}/{name}")
        export_model(outputs, config, best, local, test)
        _enter_result(writer, outputs, _result(order, best, test))
        publish(folder, writer.journal)
        _upload_tensorboard(folder, order.attempt, staging)

    session.broadcast(deliver)


def _enter_result(writer: GroupWriter, outputs: RunFolder, result: dict[str, Any]) -> None:
    """Completes the outputs, and has the journal name them as the run's: from then on they are read."""
    entry = {"kind": "finished", "attempt": writer.attempt, "outputs": writer.group.outputs}
    try:
        outputs.storage.write_bytes(layout.METRICS, accepted_metrics(writer.folder, writer.check()))
        outputs.write_json(layout.RESULT, result)
        files = [item.key for item in outputs.storage.list_files()]
        writer.append(lambda state: {**entry, "files": files, "result": result})
    except FencedError:
        writer.folder.storage.delete_tree(writer.group.outputs)
        raise


def _result(order: WorkOrder, best: Checkpoint, test: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "best_checkpoint": best.name,
        "best_step": best.step,
        "validation": best.metrics,
        "test": test,
        "test_data": order.sets["test"].key if "test" in order.sets else None,
        "max_steps": order.config.training.max_steps,
        "num_train_epochs": order.config.training.num_train_epochs,
        "attempt": order.attempt,
        "finished": layout.now(),
    }


def _keeping(config: TrainConfig) -> RetentionPolicy:
    return RetentionPolicy(config.checkpoint.num_to_keep, config.checkpoint.checkpoint_score_attribute)


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
    recognizer: Recognizer,
    start: tuple[Checkpoint, Path] | None,
) -> None:
    if not session.is_main_process:
        return
    millions = sum(weight.numel() for weight in recognizer.model.parameters()) / 1e6
    begin = f"resuming from {start[0].name}, step {start[0].step}" if start is not None else "from the beginning"
    size = plan.shape.global_batch_size
    batch = f"{size} utterances" if size else f"{plan.shape.max_batch_duration_s:g} padded s × {plan.shape.slots}"
    session.say(
        f"train: {millions:.1f} M weights · {session.world_size} workers · {batch} a step · "
        f"{plan.steps_per_epoch} steps an epoch · {_last_step(config, plan)} steps · {begin}"
    )
