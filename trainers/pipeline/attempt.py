"""Prepares an attempt up to its training: resolves the plan, prepares its data, commits the attempt to the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from trainers.config.parts.conditions import VALIDATION
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.run_part import HubPart
from trainers.config.schema import TrainConfig
from trainers.config.unused_fields import refuse_unused_fields
from trainers.config.validation import Problems
from trainers.config.wording import counted, format_duration
from trainers.data.prepared_set import JoinedSet, PreparedSet
from trainers.data.selection import not_scored, select_scored, select_training
from trainers.distributed.console import print_line, show
from trainers.distributed.console.events import DataFound, Stage
from trainers.errors import ConfigError, LostNodeError, ResourceError, ResumeError, StorageError
from trainers.models.adaptation.trained_weights import describe_trained
from trainers.models.families import check_decoder, refuse_unsupported, resolve_model
from trainers.models.family import Family
from trainers.models.labels import labels_of
from trainers.models.processor import resolve_processor
from trainers.models.sources.loaded_weights import refuse_other_weights
from trainers.models.sources.opened_model import OpenedModel, open_sources, pin_sources
from trainers.pipeline.continuation import (
    Continuation,
    decide,
    finished,
    has_ended,
    known_sources,
    previous_config,
    resolve_config,
)
from trainers.pipeline.engine import Engine
from trainers.pipeline.splits import OpenedData, check_languages, check_storage
from trainers.run_folder import layout
from trainers.run_folder.attempt_request import AttemptRequest, enter_prepared
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.fencing import Driver
from trainers.run_folder.hub_push import repository_of
from trainers.run_folder.journal import Journal, State, publish
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import named_checkpoint
from trainers.run_folder.staging import refuse_second_training
from trainers.scoring.recipe_metrics import RecipeMetrics
from trainers.training.planning import (
    bounds_of,
    context_of,
    cut_references,
    describe_mix,
    for_other_sets,
    has_full_context,
    label_sizes,
    mix_lines,
)
from trainers.training.tasks import TrainTask


class PlannedModel(NamedTuple):
    """The opened description of an attempt's model.

    Attributes:
        config: The config, with its model and decode parts as parsed by the family.
        processor: Processor of pretrained weights; None if the run learns a processor, or has ended.
    """

    config: TrainConfig
    family: Family[Any]
    model: OpenedModel
    processor: Any

    @property
    def part(self) -> ModelPart:
        """The model part of the config, with the model's folder on this node."""
        return self.model.applied_to(self.config.model)


@dataclass(frozen=True)
class AttemptPlan:
    """The plan of an attempt for one state of the journal; another state needs a new plan.

    Attributes:
        continuation: How the run begins or continues, with the config of the attempt.
        has_finished: True if nothing is left to train, so that the run's result is only shown again.
    """

    request: AttemptRequest
    state: State
    continuation: Continuation
    opened: PlannedModel
    data: OpenedData
    has_finished: bool

    @property
    def config(self) -> TrainConfig:
        return self.continuation.config


def begin(config: TrainConfig, engine: Engine, request: AttemptRequest, status: StatusWriter) -> TrainTask | None:
    """Begins an attempt; returns None if the run has finished already."""
    problems = Problems()
    with problems:
        check_storage(config)
    if problems.found:
        # The journal cannot be read now, but problems in the config can be reported, too.
        _check_recipe(config, request, problems)
        problems.refuse(request.folder.url)
    journal = Journal(request.folder)
    while True:
        plan = resolve(config, engine, request, journal.read(), status)
        if plan.has_finished:
            url = request.folder.url
            more = "raise training.max_steps or num_train_epochs, with training.extend, to train on"
            print_line(f"{url}: this run has finished; {more}, or use another run.name")
            # The finished attempt may have died or been paused before everything was published.
            publish(request.folder, journal)
            return None
        sets = plan.data.prepare(config, engine, lambda detail: status.update(Phase.PREPARING_DATA, detail=detail))
        driver = commit(plan, journal)
        if driver is not None:
            with plan.opened.model.named_in_errors():
                return _write_attempt(plan, driver, sets)


def resolve(
    config: TrainConfig, engine: Engine, request: AttemptRequest, state: State, status: StatusWriter
) -> AttemptPlan:
    """Plans an attempt for a state of the journal; finds all problems that would stop it after hours of preparing."""
    request.check(state)
    if not request.is_managed and state.experiment is not None:
        # Workers check this too, but only after the run folder shows this attempt as the run's.
        refuse_second_training(state.experiment["id"])
    problems, trains, opened = Problems(), not has_ended(state, config), None
    with problems:
        _check_cluster(config, engine, request)
    status.update(Phase.PREPARING_DATA, detail="opening the data")
    show(Stage("data", "reading manifests, and what describes the model"))
    with problems:
        opened = _open_model(config, state, trains=trains)
    if opened is None:
        # Report errors in the data, too.
        with problems:
            OpenedData.of(resolve_config(state, config), trains=trains)
    else:
        config = opened.config
        if not state.has_begun:
            with problems:
                refuse_unused_fields(config)
        if trains:
            _check_weights(opened, state, problems)
        with problems:
            data, continuation = _decide(config, request, state, trains=trains)
            if trains:
                _check_comparison(opened, data, continuation)
                check_languages(config, opened.family, data.sources, opened.processor)
    if trains:
        _check_recipe(config, request, problems)
    problems.refuse(request.folder.url)
    assert opened is not None
    continuation = continuation.with_sources(known_sources(state), opened.model.pins)
    if continuation.began_from is not None and not state.checkpoints:
        named_checkpoint(continuation.began_from, config.run.storage_options)
    has_finished = finished(state, request.folder, config, data.keys(config.data))
    return AttemptPlan(request, state, continuation, opened, data, has_finished)


def _open_model(config: TrainConfig, state: State, *, trains: bool) -> PlannedModel:
    model = open_sources(config, pin_sources(config, known_sources(state), hashed=trains), weights=False)
    with model.named_in_errors():
        config, family = resolve_model(config, model)
        refuse_unsupported(config, family)
        part = model.applied_to(config.model)
        processor = family.open_processor(part, None) if trains and not family.learns_processor(part) else None
    return PlannedModel(config, family, model, processor)


def _decide(
    config: TrainConfig, request: AttemptRequest, state: State, *, trains: bool
) -> tuple[OpenedData, Continuation]:
    """Opens the data with the run's resolved options, and decides by the data's hashes how the run continues."""
    folder = request.folder
    previous = previous_config(folder, state)

    def decided(begun: State) -> tuple[OpenedData, Continuation]:
        data = OpenedData.of(resolve_config(begun, config), trains=trains)
        try:
            keys = data.keys(config.data)
            return data, decide(folder.url, begun, previous, config, keys, retried=request.is_retry)
        except ResumeError as error:
            raise ResumeError(f"{error}{data.changed_recordings(config, state)}") from None

    data, continuation = decided(state)
    if continuation.config.data != resolve_config(state, config).data:
        # Another experiment begins, which gets the current defaults.
        return decided(replace(state, experiment=None))
    return data, continuation


def _check_cluster(config: TrainConfig, engine: Engine, request: AttemptRequest) -> None:
    try:
        engine.check(config, trains=True)
    except ResourceError as error:
        if not request.is_managed:
            raise
        # A lost node may rejoin, and the queue restarts the run when there is capacity again.
        raise LostNodeError(f"the cluster has lost a node since the queue found room there: {error}") from None


def _check_weights(opened: PlannedModel, state: State, problems: Problems) -> None:
    """Checks the weights that a run begins with; prints which of them are trained."""
    config, family, part = opened.config, opened.family, opened.part
    if part.init == "pretrained" and not state.checkpoints:
        with problems, opened.model.named_in_errors():
            refuse_other_weights(config, part, family, opened.model)
    if config.adapt.method != "full":
        with problems, opened.model.named_in_errors():
            print_line(f"adapt: {config.adapt.method}; {describe_trained(config.adapt, part, family)}")


def _has_base(opened: PlannedModel, continuation: Continuation) -> bool:
    """Returns True if the run begins with the weights of a complete recognizer, not of an encoder and a decoder."""
    is_complete = opened.config.model.name_or_path is not None and not opened.family.makes_new_head(opened.part)
    return continuation.began_from is not None or is_complete


def _check_comparison(opened: PlannedModel, data: OpenedData, continuation: Continuation) -> None:
    """Raises ConfigError if the config compares with scores of initial weights that the run will not have."""
    config, wanted = opened.config, opened.config.compared_with_base
    without = data.training_rows_without_times if config.training.keep_timestamps else 0
    if without and not _has_base(opened, continuation):
        raise ConfigError(
            f"training.keep_timestamps is {config.training.keep_timestamps:g}, but the run begins with new weights, "
            f"which write no timestamps, and {counted(without, 'training row', 'is', 'are')} not packed segments "
            "(data.pack_segments_s): set it to 0"
        )
    if wanted and not _has_base(opened, continuation):
        raise ConfigError(
            f"{' and '.join(wanted)}: the run begins with new weights, so that there is nothing to compare with: leave "
            "it out, or give limits without base"
        )
    by_validation = config.evaluate.require_better and not any(each.split == "test" for each in data.sources)
    gated = any(each.of_base and each.set == VALIDATION for each in config.checkpoint.conditions)
    if not (gated or by_validation) or config.training.full_context_eval or opened.processor is None:
        return
    family = opened.family
    limits = family.limits(family.model_config(opened.part, opened.processor), opened.processor)
    if has_full_context(config, limits) and context_of(config, limits.context_s) < limits.context_s:
        raise ConfigError(
            f"{' and '.join(wanted)}: models are compared at the full context of {limits.context_s:g} s, at which the "
            "validation set is not scored: set training.full_context_eval: true"
        )


def _check_recipe(config: TrainConfig, request: AttemptRequest, problems: Problems) -> None:
    """Checks what training and scoring need, as far as the config alone tells."""
    with problems:
        check_decoder(config.decode, config.run.storage_options)
    with problems:
        RecipeMetrics(config.scoring.metrics).check()
    if config.hub.push:
        with problems:
            _check_hub(config.hub, request.folder.name, make=not problems.found)


def _check_hub(part: HubPart, run_name: str, *, make: bool) -> None:
    """Checks that the model can be pushed; a Hub that does not respond now is only a warning."""
    try:
        repository = repository_of(part, run_name, make=make)
        text = f"hub: the best model is pushed to {repository.url} at the end"
    except StorageError as error:
        text = f"warning: {error}; training goes on, and the model is pushed at its end"
    if make:
        print_line(text)


def commit(plan: AttemptPlan, journal: Journal) -> Driver | None:
    """Commits an attempt to the journal; returns None if the journal has changed since the plan was resolved."""

    def experiment_on(state: State) -> dict[str, Any] | None:
        return plan.continuation.experiment if state.number == plan.state.number else None

    driver = Driver.open(plan.request.folder, journal, plan.request.number, experiment_on)
    if driver is not None:
        for change in plan.continuation.changes:
            print_line(f"changed since the previous attempt: {change}")
    return driver


def _write_attempt(plan: AttemptPlan, driver: Driver, sets: Mapping[str, PreparedSet]) -> TrainTask:
    """Writes the initial files of an attempt into its own folder, then makes the run folder show the attempt."""
    own, continuation, config = driver.own, plan.continuation, plan.config
    keys = {split: item.key for split, item in sets.items()}
    plan.request.write_start(driver, config, continuation.experiment, changes=continuation.changes, data=keys)
    if config.data.slice_columns:
        own.write_jsonl(layout.SLICES, plan.data.slices(config.data.slice_columns))
    processor, holder = _resolve_processor(plan, driver, sets)
    mix = _check_utterances(plan, processor, own, sets)
    enter_prepared(driver, holder, mix)
    return TrainTask(
        config=config,
        sets=sets,
        attempt=driver.attempt,
        run_id=continuation.experiment["id"],
        processor=f"{layout.ATTEMPTS}/{holder}/{layout.PROCESSOR}" if holder is not None else None,
        weights=continuation.began_from,
        lengths=continuation.lengths,
        managed_by_service=plan.request.is_managed,
        has_base=_has_base(plan.opened, continuation),
        sources=plan.opened.model.pins,
        new_speakers=plan.data.new_speakers() if config.evaluate.guard is not None else frozenset(),
    )


def _resolve_processor(plan: AttemptPlan, driver: Driver, sets: Mapping[str, PreparedSet]) -> tuple[Any, int | None]:
    """Returns the processor, and the attempt whose folder has it; None for the processor of pretrained weights.

    A run's own processor is learned, or copied from a checkpoint, by the first attempt that gets to this point; all
    later attempts use it.
    """
    state, config = driver.check(), plan.config
    model, family = plan.opened.part, plan.opened.family
    origin = None if state.processor is not None or state.checkpoints else plan.continuation.began_from
    is_own = state.processor is not None or origin is not None or family.learns_processor(model)
    if not is_own and plan.opened.processor is not None:
        return plan.opened.processor, None
    holder = state.processor or driver.attempt
    taken_over = named_checkpoint(origin, config.run.storage_options) if origin is not None else None
    texts = sets["train"].index["text"].to_pylist()
    home = driver.folder.sub(f"{layout.ATTEMPTS}/{holder}")
    return resolve_processor(family, model, home, texts, taken_over), holder if is_own else None


def _check_utterances(
    plan: AttemptPlan, processor: Any, own: RunFolder, sets: Mapping[str, PreparedSet]
) -> dict[str, Any] | None:
    """Finds problems that would stop or falsify the run later; writes which rows are left out, with the reasons.

    Returns the description of a mix, see `describe_mix`; None without a mix.
    """
    config, family, mix = plan.config, plan.opened.family, None
    limits = family.limits(family.model_config(plan.opened.part, processor), processor)
    if problems := family.misfits(config, limits):
        raise ConfigError("\n".join(problems))
    bounds, left_out, used = bounds_of(config, limits), [], {}
    for split, prepared in sets.items():
        index = prepared.index
        left_out += [{"split": split, **row} for row in prepared.quarantine]
        noted = family.check_texts(processor, (text.as_py() for text in index["text"]))
        if noted is not None:
            print_line(f"warning: {split}: {noted}")
        labels = labels_of(prepared, family, processor, config.model.language)
        if split == "train":
            chosen = select_training(index, label_sizes(labels, bounds), config.data, bounds)
            left_out += [{"split": split, **row} for row in chosen.left_out]
            used[split] = len(chosen.selection.rows)
            mix = describe_mix(config, prepared, chosen) if isinstance(prepared, JoinedSet) else None
        else:
            scored_by = for_other_sets(config) if split in config.evaluate.also else config
            within = bounds_of(scored_by, limits)
            rows = select_scored(index, labels.lengths, config.data, within, split)
            left_out += [{"split": split, **row} for row in not_scored(index, rows, within)]
            used[split] = len(rows)
            cut = cut_references(scored_by, limits, labels.lengths[rows])
            if cut is not None:
                print_line(f"warning: {split}: {cut}")
    own.write_jsonl(layout.QUARANTINE, left_out)
    quarantined = sum(prepared.summary.quarantined for prepared in sets.values())
    show(DataFound(_data_line(sets, used), quarantined))
    for line in mix_lines(mix) if mix is not None else ():
        print_line(line)
    return mix


def _data_line(sets: Mapping[str, PreparedSet], used: Mapping[str, int]) -> str:
    """Returns a line with the number of clips of each split, and how many are left out or not scored."""
    parts = []
    for split, prepared in sets.items():
        summary = prepared.summary
        notes = [format_duration(summary.duration_s)]
        if left_out := summary.prepared - used[split]:
            notes.append(f"{left_out} {'left out' if split == 'train' else 'not scored'}")
        if summary.quarantined:
            notes.append(f"{summary.quarantined} quarantined")
        parts.append(f"{split} {used[split]} of {counted(summary.rows, 'clip')} ({', '.join(notes)})")
    return "data: " + " · ".join(parts)
