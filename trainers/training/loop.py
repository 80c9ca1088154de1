"""A rank's training loop: everything that it is built of, and running it to its last step or to a request to stop."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import set_seed
from transformers.trainer import TRAINER_STATE_NAME

from trainers.config.parts.model_part import ModelPart
from trainers.config.storage_location import is_url
from trainers.data.batch_plan import BatchPlan
from trainers.distributed.coordinated_stop import LastStep
from trainers.errors import DamagedError, StorageError
from trainers.models.adaptation.base_weights import Base, store_own
from trainers.models.adaptation.lora import Adapter
from trainers.models.adaptation.trained_weights import count, train_only
from trainers.models.known_families import family_of, family_of_folder
from trainers.models.pretrained import load_once_a_node
from trainers.models.recognizer import Recognizer
from trainers.models.whisper.full_context_matching import FullContextMatching
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase
from trainers.run_folder.checkpoints import BASE, ORIGINAL, Uploader
from trainers.run_folder.disk_space import DiskEstimate, checkpoint_bytes
from trainers.run_folder.journal import Checkpoint
from trainers.scoring.scorer import Scorer
from trainers.training.arguments import autocast_dtype, training_arguments
from trainers.training.callbacks import VALIDATION, DropFetched, KeepCheckpoints, MetricsLog, ProgressReport, Reseed
from trainers.training.on_ray.checkpoint_reports import CheckpointReports
from trainers.training.on_ray.step_gauges import StepGauges
from trainers.training.planning import cache_bytes, plan_training, scored_clips, validation_options
from trainers.training.rank import Rank, Start
from trainers.training.schedule import ApplyConfig, Schedule
from trainers.training.strategies.every_layer import run_every_layer
from trainers.training.strategies.zero import nvme_optimizer
from trainers.training.trainer import PlannedBatches, SpeechTrainer
from trainers.training.validation_scoring import Validation, pass_on


@dataclass(frozen=True)
class Loop:
    """What training is built of.

    Attributes:
        rank: This rank.
        start: Where training goes on; None: at step 0.
        weights: The checkpoint whose weights it began with; None: the model's own, or it goes on.
        recognizer: Model and processor.
        plan: Batches of all ranks.
        last_step: Optimizer steps of the whole run.
        trainer: The Hugging Face Trainer.
        stop: Agrees with the other ranks on a last step, once somebody asks to stop.
        progress: Reports steps and scores.
        keeper: Stages checkpoints, and has them uploaded.
        reports: Reports them to Ray.
    """

    rank: Rank
    start: Start | None
    weights: Start | None
    recognizer: Recognizer
    plan: BatchPlan
    last_step: int
    trainer: SpeechTrainer
    stop: LastStep
    progress: ProgressReport
    keeper: KeepCheckpoints
    reports: CheckpointReports

    @property
    def first_step(self) -> int:
        """Optimizer steps that were completed before."""
        return self.start.checkpoint.step if self.start is not None else 0

    @property
    def weight_counts(self) -> tuple[int, int]:
        """Weights that are trained, and weights of the model, an adapter's among them."""
        return count(self.recognizer.model)


def build(rank: Rank, start: Start | None, weights: Start | None) -> Loop:
    """Loads the model, plans the batches, and ties the Trainer to both. Every rank calls it."""
    config, session, order = rank.config, rank.session, rank.order
    recognizer = _load_model(rank, start, weights)
    if config.strategy.shards_weights:
        recognizer = replace(recognizer, notes=(*recognizer.notes, *run_every_layer(recognizer.model)))
    plan, clips = plan_training(config, order.sets["train"], recognizer, session.world_size)
    reports = CheckpointReports(session, rank.writer, config.checkpoint.score_attribute)

    def after_upload(checkpoint: Checkpoint, seconds: float) -> None:
        rank.status.show(Phase.TRAINING, checkpoint_s=round(seconds, 1))
        reports.add(checkpoint)
        upload_tensorboard(rank)

    uploader = Uploader(rank.writer, rank.keeping, also=after_upload)
    keeper = KeepCheckpoints(session, uploader, order.attempt, rank.staging.group, sharded=config.strategy.is_sharded)
    durations_s = order.sets["train"].index["duration_s"].to_numpy()
    log = MetricsLog(rank.writer, session.print_from_main)
    progress = ProgressReport(session, log, plan, durations_s, order.attempt, rank.status)
    first_step = start.checkpoint.step if start is not None else 0
    stop = LastStep(session, first_step)
    validation = scored_clips(config, order.sets[VALIDATION], recognizer, VALIDATION)
    scorer = Scorer(validation, recognizer, session, cache_bytes=cache_bytes(config))
    _place_tensorboard(rank)
    arguments = training_arguments(
        config,
        output_dir=rank.staging.folder,
        accumulation=plan.shape.accumulation,
        on_gpu=config.scaling.use_gpu,
    )
    options = validation_options(config, recognizer.limits)
    dropping = [DropFetched(session, start.local)] if start is not None else []
    schedule = Schedule(order.lengths, plan.steps_per_epoch)
    trainer = SpeechTrainer(
        recognizer=recognizer,
        arguments=arguments,
        batches=PlannedBatches(plan, session.rank, clips.reader.prefetch, first_step),
        schedule=schedule,
        clips=clips,
        evaluate=Validation(session, scorer, options, arguments, stop, progress, keeper).score,
        callbacks=[ApplyConfig(), *dropping, Reseed(config.run.seed, session.rank), progress, keeper, reports, stop],
        optimizer=nvme_optimizer(config.strategy, arguments),
    )
    trainer.add_callback(StepGauges(session, trainer, plan, durations_s))
    last_step = schedule.last_step
    return Loop(rank, start, weights, recognizer, plan, last_step, trainer, stop, progress, keeper, reports)


def train(loop: Loop) -> str | None:
    """Trains to the last step, or until a request to stop; all checkpoints are uploaded then. Every rank calls it.

    Returns:
        Where a stopped run is; None for one at its last step.
    """
    _log_start(loop)
    _check_disks(loop)
    loop.reports.report_kept()
    set_seed(loop.rank.config.run.seed)
    if loop.start is not None:
        _score_start(loop, loop.start)
    if loop.first_step < loop.last_step:
        if loop.rank.config.training.torch_compile:
            # It loads torch's compiler.
            from trainers.training.acceleration.compiling import compile_model  # noqa: PLC0415

            compile_model(loop.trainer, loop.rank.config, loop.rank.session)
        with loop.stop:
            loop.trainer.train(resume_from_checkpoint=str(loop.start.local) if loop.start is not None else None)
    loop.keeper.finish()
    loop.reports.report_new()
    return _describe_stop(loop)


def _load_model(rank: Rank, start: Start | None, weights: Start | None) -> Recognizer:
    """The model with what is trained of it; what training has made of the weights comes with the checkpoint."""
    part, training = rank.config.adapt, rank.config.training
    adapts, weight = part.method == "lora", training.full_context_matching
    if not adapts and not weight:
        recognizer = _load_weights(rank, rank.config.model, weights.local if weights is not None else None)
        train_only(recognizer.model, part)
        return recognizer
    recognizer, base = _load_base(rank, start, weights, BASE if adapts else ORIGINAL)
    if weight:
        # Other families refuse the field.
        assert isinstance(recognizer, WhisperRecognizer)
        matching = FullContextMatching(recognizer, base, weight, autocast_dtype(rank.config))
        recognizer = replace(recognizer, matching=matching)
    if adapts:
        return replace(recognizer, adapter=Adapter.added(recognizer.model, part, rank.config.run.seed, base))
    train_only(recognizer.model, part)
    return recognizer


def _load_base(rank: Rank, start: Start | None, weights: Start | None, file: str) -> tuple[Recognizer, Base]:
    """The model as the run began with it, at each of its starts; a checkpoint's `file` says which weights those are."""
    if start is None:
        recognizer = _load_weights(rank, rank.config.model, weights.local if weights is not None else None)
        base = _new_base(rank, recognizer, is_own=rank.config.model.init == "scratch" or weights is not None)
    else:
        base = Base.of_checkpoint(start.local, file)
        own = start.local.parent / base.folder if base.folder is not None else None
        recognizer = _load_weights(rank, base.applied_to(rank.config.model), own)
    wrong: DamagedError | None = None
    # DDP gives all ranks the main process's weights to train, but not those of the original that they are matched with.
    if rank.config.training.full_context_matching or (start is not None and rank.session.is_main_process):
        try:
            base.check(recognizer.model)
        except DamagedError as error:
            wrong = error
    rank.session.raise_of_any(wrong, "checking the weights that the run began with")
    return recognizer, base


def _new_base(rank: Rank, recognizer: Recognizer, *, is_own: bool) -> Base:
    """What the run begins with; weights that only it has are stored for its checkpoints."""

    def settle() -> Base:
        if not is_own:
            return Base.pretrained(recognizer.model, rank.config.model, rank.config.run.seed)
        base = Base.own(recognizer.model)
        store_own(base, recognizer.model, rank.folder.storage.sub(layout.CHECKPOINTS), rank.staging.folder)
        return base

    made: Base = rank.session.broadcast(settle, "settling the weights that the run begins with")
    return made


def _load_weights(rank: Rank, model: ModelPart, weights: Path | None) -> Recognizer:
    processor = rank.order.processor
    with TemporaryDirectory(prefix="rayscribe-processor-") as folder:
        description = Path(folder) if processor is not None else None
        if processor is not None:
            rank.folder.storage.download_folder(processor, Path(folder))

        def load(part: ModelPart) -> Recognizer:
            # Of weights that the files lack, see `Base.seed`.
            set_seed(rank.config.run.seed)
            return family_of(part).load_recognizer(part, description, rank.config.run.seed, weights=weights)

        return load_once_a_node(model, rank.session, load)


def _log_start(loop: Loop) -> None:
    session, shape = loop.rank.session, loop.plan.shape
    if not session.is_main_process:
        return
    part = loop.rank.config.model
    if part.borrowed_language is not None:
        session.print_from_main(f"model: {part.language} is given the token of {part.borrowed_language}")
    for note in loop.recognizer.notes:
        session.print_from_main(f"model: {note}")
    trained, weights = loop.weight_counts
    begin = "from scratch" if loop.rank.config.model.init == "scratch" else "from pretrained weights"
    if loop.start is not None:
        begin = f"resuming from {loop.start.checkpoint.name}, step {loop.start.checkpoint.step}"
    elif loop.weights is not None:
        begin = f"from the weights of {loop.rank.order.weights}, with a new optimizer, schedule and step count"
    size = shape.global_batch_size
    batch = f"{size} utterances" if size else f"{shape.max_batch_duration_s:g} padded s × {shape.slots}"
    session.print_from_main(
        f"train: {trained:,} of {weights:,} weights · {session.world_size} workers{_sharding(loop)} · "
        f"{batch} per step · {loop.plan.steps_per_epoch} steps per epoch · {loop.last_step} steps · {begin}"
    )


def _sharding(loop: Loop) -> str:
    part = loop.rank.config.strategy
    return f" with {part.name}{f' ZeRO-{part.stage}' if part.stage else ''}" if part.is_sharded else ""


def _check_disks(loop: Loop) -> None:
    """Refuses on every rank what the disk of any node cannot hold."""
    if loop.first_step >= loop.last_step:
        return
    rank = loop.rank
    fetched = 0
    if loop.start is not None:
        fetched = sum(path.stat().st_size for path in loop.start.local.rglob("*") if path.is_file())
    local = None if is_url(rank.folder.url) else rank.folder.url
    existing = _size_bytes(rank.writer.check().checkpoints)
    trained, weights = loop.weight_counts
    adapter, matching = loop.recognizer.adapter, loop.recognizer.matching
    # The model that an adapter is merged into, and the weights that the run began with where only it has them.
    base = adapter or matching
    models = (adapter is not None) + (base is not None and base.has_own_base)
    disk = DiskEstimate.of(
        checkpoint_bytes(weights if adapter is None else trained, trained, sharded=rank.config.strategy.is_sharded),
        rank.staging.folder,
        rank.keeping.num_to_keep,
        local,
        existing_bytes=existing,
        fetched_bytes=fetched,
        models_bytes=models * checkpoint_bytes(weights, 0),
    )
    rank.session.print_from_main(disk.line)
    problems = [text for text in rank.session.gather(disk.problem, "checking the disks") if text is not None]
    if problems:
        raise StorageError(problems[0])


def _size_bytes(checkpoints: Iterable[Checkpoint]) -> int:
    return sum(entry["size_bytes"] for item in checkpoints for entry in item.files.values())


def _score_start(loop: Loop, start: Start) -> None:
    """Scores a checkpoint that a request to stop left where a score was due, as the undisturbed run would have."""
    rank, (checkpoint, local), part = loop.rank, start, loop.rank.config.training
    ends = checkpoint.step >= loop.last_step
    if checkpoint.metrics or not (ends or checkpoint.step % part.scoring_steps == 0):
        return
    loop.progress.scoring()
    recognizer = loop.recognizer
    if recognizer.adapter is not None:
        # Not merged, which would round: the undisturbed run's was not.
        recognizer.adapter.load(local)
    else:
        recognizer = family_of_folder(local).open_exported(local)
        recognizer.model.to(rank.device)
    validation = scored_clips(rank.config, rank.order.sets[VALIDATION], recognizer, VALIDATION)
    scorer = Scorer(validation, recognizer, rank.session, cache_bytes=cache_bytes(rank.config))
    result = scorer.score(validation_options(rank.config, recognizer.limits))
    epoch = json.loads((local / TRAINER_STATE_NAME).read_text())["epoch"]
    metrics = pass_on(result, checkpoint.step, rank.session, loop.keeper)
    loop.progress.validated(checkpoint.step, loop.last_step, epoch, metrics)
    if ends or checkpoint.step % part.save_steps == 0:
        loop.keeper.keep_again(local, checkpoint.step)


def _describe_stop(loop: Loop) -> str | None:
    if loop.stop.stopped_at is None:
        return None
    newest = loop.rank.session.broadcast(lambda: loop.keeper.newest, "naming the last checkpoint")
    return (
        f"stopped at step {loop.stop.stopped_at}/{loop.last_step}: {newest} is in "
        f"{loop.rank.folder.storage.url(layout.CHECKPOINTS)}"
    )


def _place_tensorboard(rank: Rank) -> None:
    target = (
        str(rank.staging.folder / "tensorboard")
        if is_url(rank.folder.url)
        else f"{rank.folder.url}/{layout.ATTEMPTS}/{rank.order.attempt}/tensorboard"
    )
    os.environ["TENSORBOARD_LOGGING_DIR"] = target


def upload_tensorboard(rank: Rank) -> None:
    """Copies TensorBoard's events to the run folder, where they are not written there at once."""
    local = rank.staging.folder / "tensorboard"
    if local.is_dir():
        rank.folder.storage.upload_folder(local, f"{layout.ATTEMPTS}/{rank.order.attempt}/tensorboard")
