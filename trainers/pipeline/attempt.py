"""An attempt up to its training: resolve the plan, prepare its data, commit it to the journal."""

from collections.abc import Mapping
from typing import Any

from trainers.data.prepared_set import PreparedSet
from trainers.data.selection import not_scored, select_scored, select_training
from trainers.distributed.console import print_line
from trainers.errors import ConfigError
from trainers.models.labels import labels_of
from trainers.models.processor import keep_saved_processor, resolve_processor
from trainers.pipeline.attempt_plan import AttemptPlan, AttemptRequest, resolve
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.fencing import Driver
from trainers.run_folder.journal import Journal, publish
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import named_checkpoint
from trainers.training.planning import bounds_of, cut_references, label_sizes
from trainers.training.worker_context import TrainTask


def begin(request: AttemptRequest, status: StatusWriter) -> TrainTask | None:
    """Begins an attempt; None where the run has finished already.

    Raises:
        RayscribeError: the attempt cannot be begun, or cannot succeed.
    """
    journal = Journal(request.folder)
    while True:
        plan = resolve(request, journal, status)
        if plan.has_finished:
            url = request.folder.url
            print_line(f"{url}: this run has finished; raise training.max_steps to train on, or name another run")
            # The attempt that finished may have died, or may be paused, before all of it was to be seen.
            publish(request.folder, journal)
            return None
        sets = plan.data.prepare(
            request.config, request.engine, lambda detail: status.show(Phase.PREPARING_DATA, detail=detail)
        )
        driver = commit(plan, journal)
        if driver is not None:
            return _write_attempt(plan, driver, sets)


def commit(plan: AttemptPlan, journal: Journal) -> Driver | None:
    """Enters an attempt in the journal; None where that has moved since the plan was resolved.

    Raises:
        FencedError: an attempt of its number or a later one has begun.
    """
    request, number = plan.request, plan.state.number
    driver = Driver.open(
        request.folder,
        journal,
        request.number,
        lambda state: plan.continuation.experiment if state.number == number else None,
    )
    if driver is not None:
        for change in plan.continuation.changes:
            print_line(f"changed since the attempt before: {change}")
    return driver


def _write_attempt(plan: AttemptPlan, driver: Driver, sets: Mapping[str, PreparedSet]) -> TrainTask:
    """Writes what an attempt begins with into its own folder, then has the run folder show it."""
    own, continuation, config = driver.own, plan.continuation, plan.config
    own.write_json(layout.ATTEMPT, {**layout.describe_start(), "changes": continuation.changes})
    own.write_request(config, plan.request.overrides)
    own.write_json(layout.ENVIRONMENT, layout.describe_environment({split: item.key for split, item in sets.items()}))
    own.write_json(layout.EXPERIMENT, continuation.experiment)
    processor, holder = _resolve_processor(plan, driver, sets)
    _check_utterances(plan, processor, own, sets)
    driver.append(lambda _: {"kind": "prepared", "attempt": driver.attempt, "processor": holder})
    publish(driver.folder, driver.journal)
    return TrainTask(
        config=config,
        sets=sets,
        attempt=driver.attempt,
        run_id=continuation.experiment["id"],
        processor=f"{layout.ATTEMPTS}/{holder}/{layout.PROCESSOR}" if holder is not None else None,
        weights=continuation.began_from,
        lengths=continuation.lengths,
        numbered=plan.request.number is not None,
    )


def _resolve_processor(plan: AttemptPlan, driver: Driver, sets: Mapping[str, PreparedSet]) -> tuple[Any, int | None]:
    """The processor, and the attempt whose folder holds it; None: it is that of pretrained weights.

    A run's own is learned, or taken from a checkpoint, by the first attempt that comes so far, and is that one's for
    all others.
    """
    state, config = driver.check(), plan.config
    model, family = config.model, plan.family
    origin = None if state.processor is not None or state.checkpoints else plan.continuation.began_from
    is_own = state.processor is not None or origin is not None or family.learns_processor(model)
    if not is_own and state.checkpoints and family.keeps_saved_processor(model):
        is_own = keep_saved_processor(family, model, driver.folder, state.checkpoints, driver.own)
    if not is_own and plan.processor is not None:
        return plan.processor, None
    holder = state.processor or driver.attempt
    taken_over = named_checkpoint(origin, config.run.storage_options) if origin is not None else None
    texts = sets["train"].index["text"].to_pylist()
    home = driver.folder.sub(f"{layout.ATTEMPTS}/{holder}")
    return resolve_processor(family, model, home, texts, taken_over), holder if is_own else None


def _check_utterances(plan: AttemptPlan, processor: Any, own: RunFolder, sets: Mapping[str, PreparedSet]) -> None:
    """Finds what would stop or falsify the run later, and writes which rows are left out and why."""
    config, family = plan.config, plan.family
    limits = family.limits(config.model, processor)
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
        else:
            rows = select_scored(index, labels.lengths, config.data, bounds, split)
            left_out += [{"split": split, **row} for row in not_scored(index, rows, bounds)]
            used[split] = len(rows)
            cut = cut_references(config, limits, labels.lengths[rows])
            if cut is not None:
                print_line(f"warning: {split}: {cut}")
    own.write_jsonl(layout.QUARANTINE, left_out)
    print_line(_data_line(sets, used))


def _data_line(sets: Mapping[str, PreparedSet], used: Mapping[str, int]) -> str:
    """How many clips there are of each split, and how many of them are left out of training or of the score."""
    parts = []
    for split, prepared in sets.items():
        summary = prepared.summary
        notes = [f"{summary.duration_s / 3600:.2f} h"]
        if left_out := summary.prepared - used[split]:
            notes.append(f"{left_out} {'left out' if split == 'train' else 'not scored'}")
        if summary.quarantined:
            notes.append(f"{summary.quarantined} quarantined")
        parts.append(f"{split} {used[split]} of {summary.rows} clips ({', '.join(notes)})")
    return "data: " + " · ".join(parts)
