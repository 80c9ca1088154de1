"""Opens, checks and prepares, on a rank, the model with which a run's training begins."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import set_seed

from trainers.config.parts.model_source import SourceKind
from trainers.models.adaptation.base_weights import BaseWeightsReference, store_own
from trainers.models.adaptation.lora import Adapter
from trainers.models.adaptation.trained_weights import train_only
from trainers.models.families import family_of
from trainers.models.processor import fetch_processor
from trainers.models.recognizer import Recognizer
from trainers.models.sources.model_files import WEIGHTS
from trainers.models.sources.opened_model import OpenedModel, open_once_a_node
from trainers.run_folder import layout
from trainers.run_folder.checkpoints import BASE, ORIGINAL
from trainers.training.arguments import autocast_dtype
from trainers.training.sharding import run_every_layer
from trainers.training.worker_context import ResumePoint, WorkerContext


def load_model(context: WorkerContext, start: ResumePoint | None, weights: ResumePoint | None) -> Recognizer:
    """Returns the initial model of the run, with the weights to train selected. Every rank calls this.

    Args:
        context: Context of the rank.
        start: The checkpoint to resume from, from which the Trainer later loads trained weights; None for a new run.
        weights: The checkpoint with the initial weights; None if they are the model's own, or training resumes.
    """
    part, model = context.config.adapt, context.config.model
    adapts = part.method == "lora"
    if adapts or model.is_regularized:
        recognizer, base = _load_base(context, start, weights, BASE if adapts else ORIGINAL)
        regularizer = recognizer.new_regularizer(model, autocast_dtype(context.config))
        recognizer = replace(recognizer, base=base, regularizer=regularizer)
        if adapts:
            adapter = Adapter.added(recognizer.model, part, context.config.run.seed, base)
            recognizer = replace(recognizer, adapter=adapter)
    else:
        recognizer = _load_weights(context, _open_model(context), weights.local if weights is not None else None)
    if not adapts:
        train_only(recognizer.model, part)
    if context.config.strategy.shards_weights:
        return replace(recognizer, notes=(*recognizer.notes, *run_every_layer(recognizer.model)))
    return recognizer


def open_initial(context: WorkerContext, weights: ResumePoint | None) -> Recognizer:
    """Returns the recognizer that a run begins with, without an adapter; every rank calls this. See `load_model`."""
    return _load_weights(context, _open_model(context), weights.local if weights is not None else None)


def _load_base(
    context: WorkerContext, start: ResumePoint | None, weights: ResumePoint | None, file: str
) -> tuple[Recognizer, BaseWeightsReference]:
    """Returns the initial model and a reference to its weights; a resumed run has the reference in `file`."""
    if start is None:
        opened = _open_model(context)
        recognizer = _load_weights(context, opened, weights.local if weights is not None else None)
        is_own = context.config.model.init == "scratch" or weights is not None or opened.is_own
        base = _new_base(context, recognizer, None if is_own else opened)
    else:
        base = BaseWeightsReference.of_checkpoint(start.local, file)
        own = start.local.parent / base.folder if base.folder is not None else None
        recognizer = _load_weights(context, _open_model(context, base.revision), own)
    with context.session.failing_together("checking the weights that the run began with"):
        # DDP broadcasts the main process's weights, but not those with which a regularizer compares them.
        if context.config.model.is_regularized or (start is not None and context.session.is_main_process):
            base.check(recognizer.model)
    return recognizer, base


def _new_base(context: WorkerContext, recognizer: Recognizer, named: OpenedModel | None) -> BaseWeightsReference:
    """Returns a reference to the initial weights; stores them if only the run has them (`named` is None)."""

    def resolve() -> BaseWeightsReference:
        if named is not None:
            model = named.named_in(context.config.model)
            return BaseWeightsReference.pretrained(recognizer.model, model, context.config.run.seed)
        base = BaseWeightsReference.of_run(recognizer.model)
        store_own(base, recognizer.model, context.folder.storage.sub(layout.CHECKPOINTS), context.staging.folder)
        return base

    made: BaseWeightsReference = context.session.broadcast(resolve, "resolving the weights that the run begins with")
    return made


def _open_model(context: WorkerContext, revision: str | None = None) -> OpenedModel:
    """Opens the model's files on this node; `revision` is the Hub revision from a checkpoint. Every rank calls this."""
    sources = dict(context.task.sources)
    weights = sources.get(WEIGHTS)
    if revision is not None and weights is not None and weights.kind is SourceKind.HUB:
        sources[WEIGHTS] = replace(weights, revision=revision)
    return open_once_a_node(context.config, sources, context.session)


def _load_weights(context: WorkerContext, opened: OpenedModel, weights: Path | None) -> Recognizer:
    processor = context.task.processor
    with TemporaryDirectory(prefix="rayscribe-processor-") as folder:
        description = Path(folder) if processor is not None else None
        if processor is not None:
            fetch_processor(context.folder.storage, processor, Path(folder))
        part, seed = opened.applied_to(context.config.model), context.config.run.seed
        # Seeds the weights that the files lack, see `BaseWeightsReference.seed`.
        set_seed(seed)
        with opened.named_in_errors():
            return family_of(part).load_recognizer(part, description, seed, weights=weights)
