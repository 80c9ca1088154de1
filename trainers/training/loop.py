"""Builds the components of a rank's training loop, and trains to the last step or a stop request."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import set_seed
from transformers.trainer import TRAINER_STATE_NAME

from trainers.config.parts.conditions import VALIDATION
from trainers.config.storage_location import is_url
from trainers.config.wording import counted
from trainers.data.batch_plan import BatchPlan
from trainers.distributed.console.events import TrainingBegan
from trainers.distributed.coordinated_stop import LastStep
from trainers.errors import DivergedError, FullDiskError
from trainers.models.adaptation.trained_weights import count
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Recognizer
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase, base_wers, validations, wers_of
from trainers.run_folder.checkpoints import Uploader
from trainers.run_folder.disk_space import STAGED_CHECKPOINTS, DiskEstimate, checkpoint_bytes
from trainers.run_folder.journal import Checkpoint
from trainers.scoring.scorer import CutShortError
from trainers.training.arguments import training_arguments
from trainers.training.base.gate import Gate
from trainers.training.callbacks import (
    CheckpointReports,
    DeleteResumeFiles,
    KeepCheckpoints,
    MetricsLog,
    ProgressReport,
    Reseed,
)
from trainers.training.early_stop import EarlyStop, Patience, ranked_score
from trainers.training.planning import small_set_note
from trainers.training.schedule import ApplyConfig, Schedule
from trainers.training.sharding import nvme_optimizer
from trainers.training.trainer.planned_batches import Clips, PlannedBatches
from trainers.training.trainer.speech_trainer import SpeechTrainer
from trainers.training.trainer.step_times import StepGauges
from trainers.training.validation_scores import Validation
from trainers.training.worker_context import ResumePoint, WorkerContext


@dataclass(frozen=True)
class Loop:
    """The components of training, which resumes from the checkpoint `start`, if any."""

    context: WorkerContext
    start: ResumePoint | None
    recognizer: Recognizer
    plan: BatchPlan
    last_step: int
    trainer: SpeechTrainer
    stop: LastStep
    log: MetricsLog
    progress: ProgressReport
    early_stop: EarlyStop
    validation: Validation
    keeper: KeepCheckpoints
    reports: CheckpointReports

    @property
    def first_step(self) -> int:
        """Number of optimizer steps that were completed before."""
        return self.start.checkpoint.step if self.start is not None else 0


def build(
    context: WorkerContext, start: ResumePoint | None, recognizer: Recognizer, plan: BatchPlan, clips: Clips
) -> Loop:
    """Creates the Trainer with the model, the batch plan and the plan's clips. Every rank calls this."""
    config, session, task = context.config, context.session, context.task
    keeper, reports = _checkpoints(context)
    durations_s = task.sets["train"].index["duration_s"].to_numpy()
    log = MetricsLog(context.writer, session.show_from_main, context.show_metrics)
    if start is not None and session.is_main_process:
        log.take_over(start.local)
    first_step = start.checkpoint.step if start is not None else 0
    earlier = _earlier_validations(context, first_step)
    progress = ProgressReport(
        session,
        log,
        plan,
        durations_s,
        context.status,
        config.scoring.metrics,
        wers=wers_of(earlier),
        regularizer=recognizer.regularizer,
    )
    early_stop = _early_stop(context, start, earlier)
    stop = LastStep(session, first_step)
    validation = Validation.of(context, recognizer, Gate.of(context), progress, keeper)
    arguments = training_arguments(
        config,
        output_dir=context.staging.folder,
        accumulation=plan.shape.accumulation,
        on_gpu=config.scaling.use_gpu,
    )

    def evaluate(step: int) -> dict[str, float] | None:
        try:
            return validation.score(step, partial(stop.skips_evaluation, arguments))
        except CutShortError:
            stop.end_at(step)
            return None

    deleting = [DeleteResumeFiles(session, start.local)] if start is not None else []
    schedule = Schedule(task.lengths, plan.steps_per_epoch)
    trainer = SpeechTrainer(
        recognizer=recognizer,
        arguments=arguments,
        batches=PlannedBatches(plan, session.rank, clips.reader.prefetch, first_step, recognizer.regularizer),
        schedule=schedule,
        clips=clips,
        evaluate=evaluate,
        callbacks=[
            *(ApplyConfig(), *deleting, Reseed(config.run.seed, session.rank)),
            *(progress, early_stop, keeper, reports, stop),
        ],
        optimizer=nvme_optimizer(config.strategy, arguments),
    )
    trainer.add_callback(StepGauges(session, trainer.times, trainer.exchange, plan, durations_s))
    last_step = schedule.last_step
    components = (trainer, stop, log, progress, early_stop, validation, keeper, reports)
    return Loop(context, start, recognizer, plan, last_step, *components)


def _checkpoints(context: WorkerContext) -> tuple[KeepCheckpoints, CheckpointReports]:
    """Creates the callbacks that store checkpoints, and report those that are stored."""
    session, config = context.session, context.config
    reports = CheckpointReports(session, context.writer, config.checkpoint.score_attribute)

    def after_upload(checkpoint: Checkpoint, seconds: float) -> None:
        context.status.update(Phase.TRAINING, checkpoint_s=round(seconds, 1))
        reports.add(checkpoint)
        context.trackers.upload()
        context.page.request()

    uploader = Uploader(context.writer, context.retention, also=after_upload)
    group, attempt = context.staging.group, context.task.attempt
    return KeepCheckpoints(session, uploader, attempt, group, sharded=config.strategy.is_sharded), reports


def _early_stop(context: WorkerContext, start: ResumePoint | None, earlier: Sequence[dict[str, Any]]) -> EarlyStop:
    """Creates the callback that ends training early, which counts earlier validations."""
    ranking = context.config.checkpoint.score_attribute
    first_step = start.checkpoint.step if start is not None else 0
    # A checkpoint without a score is scored again when training begins.
    counted_to = first_step if start is not None and start.checkpoint.metrics else first_step - 1
    scores = [
        ranked_score(line, ranking) for line in earlier if line.get(ranking) is not None and line["step"] <= counted_to
    ]
    order = context.config.checkpoint.checkpoint_score_order
    return EarlyStop(context.session, Patience(context.config.training.patience, order, scores), ranking)


def _earlier_validations(context: WorkerContext, first_step: int) -> list[dict[str, Any]]:
    """Returns the metrics of the run's validations before this start."""
    if first_step == 0:
        return []

    def read() -> list[dict[str, Any]]:
        return validations(context.folder, context.writer.journal.read(), first_step)

    earlier: list[dict[str, Any]] = context.session.broadcast(read, "reading the earlier validations")
    return earlier


def train(loop: Loop) -> str | None:
    """Trains to the last step, or until a stop request, and uploads all checkpoints. Every rank calls this.

    Returns a message with step and checkpoint of a stopped run; None at the last step. Raises DivergedError.
    """
    _log_start(loop)
    _check_disks(loop)
    loop.reports.report_kept()
    set_seed(loop.context.config.run.seed)
    if loop.start is not None:
        _score_start(loop, loop.start)
    _show_base(loop)
    is_exhausted = loop.early_stop.patience.is_exhausted
    if loop.first_step < loop.last_step and is_exhausted:
        loop.context.session.show_from_main(
            f"train: ended early at step {loop.first_step}; to train on, raise training.patience, or set it to null"
        )
    if loop.first_step < loop.last_step and not is_exhausted:
        if loop.context.config.training.torch_compile:
            # Imported here, since it imports torch's compiler.
            from trainers.training.trainer.compiling import compile_model  # noqa: PLC0415

            compile_model(loop.trainer, loop.context.config, loop.context.session)
        try:
            with loop.stop:
                loop.trainer.train(resume_from_checkpoint=str(loop.start.local) if loop.start is not None else None)
        except DivergedError:
            # Every rank raises this. The last checkpoint, from which another run may begin, may still be uploading.
            loop.keeper.finish()
            raise
    loop.keeper.finish()
    if loop.stop.stopped_at is None:
        loop.context.session.broadcast(loop.log.complete, "writing the last metrics")
    loop.reports.report_new()
    return _describe_stop(loop)


def _show_base(loop: Loop) -> None:
    """Adds the weights that the run begins with, if they were scored, to the status, and as step 0 to the metrics."""
    if not loop.context.session.is_main_process:
        return
    state = loop.context.writer.check()
    loop.context.status.update(Phase.TRAINING, **base_wers(state))
    if state.base is not None and loop.start is None:
        loop.progress.base(state.base.scores[VALIDATION])


def _log_start(loop: Loop) -> None:
    session, shape = loop.context.session, loop.plan.shape
    if not session.is_main_process:
        return
    part = loop.context.config.model
    if part.token_language != part.language:
        session.show_from_main(f"model: {part.language} is given the token of {part.token_language}")
    for note in loop.recognizer.notes:
        session.show_from_main(f"model: {note}")
    trained, weights = count(loop.recognizer.model)
    begin = "from scratch" if loop.context.config.model.init == "scratch" else "from pretrained weights"
    if loop.start is not None:
        begin = f"resuming from {loop.start.checkpoint.name}, step {loop.start.checkpoint.step}"
    elif loop.context.task.weights is not None:
        begin = f"from the weights of {loop.context.task.weights}, with a new optimizer, schedule and step count"
    strategy, size = loop.context.config.strategy, shape.global_batch_size
    stage = f" ZeRO-{strategy.stage}" if strategy.stage else ""
    sharding = f" with {strategy.name}{stage}" if strategy.is_sharded else ""
    batch = f"{counted(size, 'utterance')}" if size else f"{shape.max_batch_duration_s:g} padded s × {shape.slots}"
    line = (
        f"train: {trained:,} of {weights:,} weights · {counted(session.world_size, 'worker')}{sharding} · {batch} per "
        f"step · {counted(loop.plan.steps_per_epoch, 'step')} per epoch · {counted(loop.last_step, 'step')} · {begin}"
    )
    session.show_from_main(TrainingBegan(line, session.world_size, loop.first_step, loop.last_step))
    training = loop.context.config.training
    # For a fixed number of steps, the note has been printed before preparing.
    warmup = training.warmup_note(loop.last_step) if training.max_steps is None else None
    notes = [warmup, small_set_note(loop.plan)]
    for note in filter(None, notes):
        session.show_from_main(f"warning: {note}")


def _check_disks(loop: Loop) -> None:
    """Raises an error on all ranks if the disk of any node is too small."""
    if loop.first_step >= loop.last_step:
        return
    context = loop.context
    fetched = 0
    if loop.start is not None:
        fetched = sum(path.stat().st_size for path in loop.start.local.rglob("*") if path.is_file())
    local = None if is_url(context.folder.url) else context.folder.url
    checkpoints = context.writer.check().checkpoints
    existing = sum(entry["size_bytes"] for item in checkpoints for entry in item.files.values())
    trained, weights = count(loop.recognizer.model)
    adapter, base = loop.recognizer.adapter, loop.recognizer.base
    # The merged model of an adapter, and the initial weights if only the run has them.
    models = (adapter is not None) + (base is not None and base.is_own)
    size = checkpoint_bytes(
        weights if adapter is None else trained, trained, sharded=context.config.strategy.is_sharded
    )
    each, part = weights * loop.recognizer.model.dtype.itemsize, context.config.checkpoint
    # At the end, without staged checkpoints: averaged ones and their average, the best, initial and chosen weights.
    last = (4 + (part.average or 0)) * each if part.interpolate or part.average else 0
    disk = DiskEstimate.of(
        size,
        context.staging.folder,
        context.retention.num_to_keep,
        local,
        existing_bytes=existing,
        fetched_bytes=fetched,
        models_bytes=models * each + max(0, last - STAGED_CHECKPOINTS * size),
    )
    context.session.show_from_main(disk.line)
    problems = [text for text in context.session.gather(disk.problem, "checking the disks") if text is not None]
    if problems:
        raise FullDiskError(problems[0])


def _score_start(loop: Loop, start: ResumePoint) -> None:
    """Scores a checkpoint that was saved on a stop request, if an uninterrupted run would have scored it."""
    context, (checkpoint, local), part = loop.context, start, loop.context.config.training
    ends = checkpoint.step >= loop.last_step
    if checkpoint.metrics or not (ends or checkpoint.step % part.scoring_steps == 0):
        return
    recognizer = loop.recognizer
    if recognizer.adapter is not None:
        # Not merged, since merging rounds, and an uninterrupted run scores the unmerged adapter.
        recognizer.adapter.load(local)
    else:
        recognizer = family_of_folder(local).open_exported(local)
        recognizer.model.to(context.device)
    epoch = json.loads((local / TRAINER_STATE_NAME).read_text())["epoch"]
    validation = Validation.of(context, recognizer, loop.validation.gate, loop.progress, loop.keeper)
    metrics = validation.score(checkpoint.step)
    loop.progress.validated(checkpoint.step, loop.last_step, epoch, metrics)
    loop.early_stop.scored(metrics)
    ends = ends or loop.early_stop.patience.is_exhausted
    if ends or checkpoint.step % part.save_steps == 0:
        loop.keeper.restage_with_score(local, checkpoint.step)


def _describe_stop(loop: Loop) -> str | None:
    if loop.stop.stopped_at is None:
        return None
    newest = loop.context.session.broadcast(lambda: loop.keeper.newest, "naming the last checkpoint")
    return (
        f"stopped at step {loop.stop.stopped_at}/{loop.last_step}: {newest} is in "
        f"{loop.context.folder.storage.url(layout.CHECKPOINTS)}"
    )
