"""The training worker, with and without Ray: resume → build → train → finish."""

import gc
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainers.config.loader import same_command
from trainers.config.parts.conditions import NEW_SPEAKERS, VALIDATION
from trainers.config.wording import counted
from trainers.data.sounds import SOUNDS
from trainers.distributed.console.events import Stage
from trainers.distributed.session import Session
from trainers.errors import DivergedError, FencedError, RayscribeError, RefusedError, RegroupError, StoppedError
from trainers.metrics.known_metrics import known_metrics
from trainers.models.adaptation.lora import merge_once_a_node
from trainers.models.families import family_of_folder
from trainers.models.sources.origins import origin_of
from trainers.models.weights import layer_distances
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.checkpoints import REFUSED, TRAINING_STATE, newest
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Base, Checkpoint, accepted_metrics, deduplicate, publish
from trainers.run_folder.layout import MODEL, RunFolder
from trainers.run_folder.resume import fetch_best, fetch_weights, starting_point, take_over
from trainers.run_folder.staging import Staging
from trainers.scoring.comparison.comparison import compare_named
from trainers.scoring.comparison.systems import System
from trainers.scoring.comparison.verdict import Verdict
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.report.base_section import base_section
from trainers.scoring.report.live_page import LivePage
from trainers.scoring.report.model_card import BEST_CHECKPOINT, Measured, beyond, model_card
from trainers.storage.json_files import to_json
from trainers.training.arguments import check_trackers, silence_libraries
from trainers.training.base.base_scores import conditions_of_scores, score_base, weights_identity
from trainers.training.base.gate import Gate
from trainers.training.base.initial_model import load_model, open_initial
from trainers.training.base.interpolation import ChosenWeights, choose_weights
from trainers.training.base.timed_labels import find_segments, read_segments
from trainers.training.loop import Loop, build, train
from trainers.training.planning import plan_training
from trainers.training.scoring_worker import LOADING, open_search, score_sounds, score_split, score_task
from trainers.training.sharding import sharding_process
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.trackers.known_trackers import KNOWN_TRACKERS, reported_to
from trainers.training.trackers.tracker_feed import TrackedRun, TrackerFiles, Trackers
from trainers.training.worker_context import ResumePoint, WorkerContext

_SPLITS = (VALIDATION, layout.at_full_context(VALIDATION))
_VALIDATIONS = {f"{split}{end}" for split in _SPLITS for end in (".json", ".jsonl")}
NOT_EXPORTED = TRAINING_STATE | _VALIDATIONS


def run_on_rank(task: TrainTask | ScoreTask, session: Session) -> None:
    """Does the work of a rank: trains or scores. Every rank calls this."""
    if isinstance(task, ScoreTask):
        score_task(task, session)
    else:
        run_training_worker(task, session)


def run_training_worker(task: TrainTask, session: Session, watch: Callable[[Loop], None] = lambda _: None) -> None:
    """Trains, scores and exports one run. Every rank calls this; `watch` is called before training.

    Raises:
        DivergedError: a loss or a weight is no longer finite; earlier checkpoints are kept.
        FencedError: another attempt has taken over the run.
        StoppedError: training was stopped on request, and its last checkpoint is stored.
        RegroupError: the ranks ended on request, so that another group continues from the stored checkpoint.
    """
    silence_libraries()
    session.show_from_main(LOADING)
    config = task.config
    # Checked on the nodes, too, which may lack packages that the driver has.
    check_trackers(config)
    with _worker_context(task, session) as context:
        start = resume(context)
        weights = begin_from(context) if start is None else None
        if start is None:
            score_base(context, weights)
            _free_memory()
            find_segments(context, weights)
            _free_memory()
        with sharding_process(config.strategy, on_gpu=config.scaling.use_gpu), session.stoppable():
            stopped = _train(context, start, weights, watch)
            if stopped is not None:
                reason = session.broadcast(session.regroup_reason, "asking why training ends")
                if reason is not None:
                    raise RegroupError(f"{reason}; {stopped}")
                again = same_command(str(config.run.name))
                raise StoppedError(f"{stopped}; {again}, or `rayscribe resume`, continues")
        _free_memory()
        with context.writer.writing_outputs():
            finish(context, weights)


def _free_memory() -> None:
    """Frees models, gradients and optimizers that are no longer used, which are in reference cycles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _train(
    context: WorkerContext, start: ResumePoint | None, weights: ResumePoint | None, watch: Callable[[Loop], None]
) -> str | None:
    """Loads the model, plans and trains, see `loop.train`; keeps no references to objects of the training."""
    recognizer = load_model(context, start, weights)
    training_set, workers = context.task.sets["train"], context.session.world_size
    timed = read_segments(context)
    if timed:
        of_all = counted(len(training_set.index), "training clip")
        context.session.show_from_main(f"timestamps: {len(timed)} of {of_all} have them in their labels")
    plan, clips = plan_training(context.config, training_set, recognizer, workers, timed)
    loop = build(context, start, recognizer, plan, clips)
    watch(loop)
    return train(loop)


@contextmanager
def _worker_context(task: TrainTask, session: Session) -> Iterator[WorkerContext]:
    """Yields a rank's context; at the end, deletes staged checkpoints unless a later group may need them."""
    staging = Staging.open(task.run_id, session, session.group)
    writer = GroupWriter.of(RunFolder.of(task.config), task.attempt, staging.group)
    if session.local_rank == 0:
        staging.name_run(writer.folder.url)
    try:
        with (
            StatusWriter(writer.folder, task.attempt if session.is_main_process else None) as status,
            _trackers(task, session, staging, writer) as trackers,
            LivePage(writer.folder, session.show_from_main) as page,
        ):
            yield WorkerContext(task, session, staging, writer, status, trackers, page)
    except (DivergedError, FencedError, RefusedError, RegroupError, StoppedError):
        if session.local_rank == 0:
            staging.remove()
        raise
    finally:
        # A process that continues, such as a notebook, may begin the next attempt.
        staging.release()
    if session.local_rank == 0:
        staging.remove()


def _trackers(task: TrainTask, session: Session, staging: Staging, writer: GroupWriter) -> Trackers:
    names = reported_to(task.config) if session.is_main_process else []
    trackers = {name: KNOWN_TRACKERS[name]() for name in names if name in KNOWN_TRACKERS}
    config = {**task.config.model_dump(mode="json", exclude={"job"}), "run_folder": writer.folder.url}
    files = TrackerFiles(writer.folder, staging.folder)
    run = TrackedRun(task.run_id, writer.folder.name, config, files)
    return Trackers(trackers, run, writer, session.show_from_main)


def resume(context: WorkerContext) -> ResumePoint | None:
    """Takes over from the previous worker group, and fetches the checkpoint to resume from; None if there is none."""
    elastic = {"workers": context.session.world_size} if context.config.scaling.is_elastic else {}
    loading = "loading the model and the last checkpoint"
    context.status.update(Phase.TRAINING, detail=loading, **elastic)
    restarts = take_over(
        context.staging,
        context.writer,
        context.retention,
        context.session,
        managed_by_service=context.task.managed_by_service,
    )
    context.status.update(Phase.TRAINING, detail=loading, **restarts)
    found = starting_point(context.staging, context.writer, context.session)
    start = ResumePoint(*found) if found is not None else None
    resized = context.session.broadcast(
        lambda: context.writer.resize(start.checkpoint.step if start is not None else 0, context.session.world_size),
        "entering the number of workers",
    )
    if resized is not None:
        context.session.show_from_main(resized)
    return start


def begin_from(context: WorkerContext) -> ResumePoint | None:
    """Fetches the checkpoint with the run's initial weights; returns None if they are the model's own."""
    if context.task.weights is None:
        return None
    options = context.config.run.storage_options
    checkpoint, local = fetch_weights(context.task.weights, options, context.staging, context.session)
    return ResumePoint(checkpoint, merge_once_a_node(local, context.session))


def finish(context: WorkerContext, weights: ResumePoint | None = None) -> None:
    """Scores the best checkpoint on the test split and exports it into this group's folder. Every rank calls this.

    `weights` are the initial weights, if this group has fetched them.
    """
    context.status.update(Phase.EVALUATING, detail="scoring and exporting the best checkpoint")
    context.session.show_from_main(Stage("test", "scoring the best checkpoint"))
    outputs = context.folder.sub(context.writer.group.outputs)
    # Weights nearer to the base may pass where all checkpoints are refused.
    last = bool(context.config.checkpoint.interpolate)
    found = fetch_best(context.staging, context.writer, context.retention, context.session, or_newest=last)
    if found is None:
        _raise_refused(context)
        raise RayscribeError(
            f"{context.folder.url}: training ended without a checkpoint; this is a bug, please report it"
        )
    best, local = found[0], merge_once_a_node(found[1], context.session)
    weights, is_there = _initial_weights(context, weights)
    conditions = conditions_of_scores(context)
    if is_there:
        # A resumed run may have another test set, or decode otherwise.
        score_base(context, weights, conditions)
    chosen = _choose_weights(context, local, weights, is_there=is_there)
    if chosen is not None:
        best, local = replace(best, metrics={**chosen.metrics}), chosen.folder
    elif best.metrics.get(REFUSED):
        _raise_refused(context)
    test = _score(context, outputs, local)
    distances = _distances(context, local, weights) if is_there else None
    context.session.show_from_main(Stage("export", "writing the model and its scores"))
    context.session.broadcast(
        lambda: _deliver(context, outputs, best, local, test, conditions, chosen, distances), "exporting the model"
    )


def _initial_weights(context: WorkerContext, weights: ResumePoint | None) -> tuple[ResumePoint | None, bool]:
    """Returns the run's initial weights, see `begin_from`, and whether they are still those that were scored.

    Every rank calls this.
    """
    base = Gate.of(context).base
    if not (context.task.has_base and context.config.evaluate.base):
        return None, False
    try:
        weights = weights or begin_from(context)
    except RayscribeError as error:
        problem = str(error)
    else:
        if base is None or base.weights == weights_identity(context, weights):
            return weights, True
        problem = "they have changed since it began"
    part = context.config.checkpoint
    missing = ["the distances of layers from them", *(["checkpoint.interpolate"] if part.interpolate else [])]
    context.session.show_from_main(
        f"warning: the result lacks {' and '.join(missing)}, since the weights that the run began with cannot be read: "
        f"{problem}"
    )
    return None, False


def _distances(context: WorkerContext, local: Path, weights: ResumePoint | None) -> dict[str, float] | None:
    """Returns how far each layer has moved from the initial weights, on the main process; None on others."""
    initial = open_initial(context, weights).model.state_dict()
    if not context.session.is_main_process:
        return None
    return layer_distances(initial, family_of_folder(local).open_exported(local).model.state_dict())


def _choose_weights(
    context: WorkerContext, best: Path, weights: ResumePoint | None, *, is_there: bool
) -> ChosenWeights | None:
    """Chooses the exported weights among those of the config; returns None if it asks for the best checkpoint only."""
    part = context.config.checkpoint
    shares: Sequence[float] = part.interpolate if is_there else ()
    if not shares and part.average is None:
        return None
    return choose_weights(context, weights, best, shares, Gate.of(context))


def _raise_refused(context: WorkerContext) -> None:
    """Raises RefusedError if checkpoint.refuse_if refuses every checkpoint."""
    state = context.writer.journal.read()
    last = newest(state.checkpoints)
    reasons = Gate(context, state.base).reasons(last.metrics) if last is not None else []
    if last is not None and reasons:
        raise RefusedError(
            f"{context.folder.url}: checkpoint.refuse_if refuses every checkpoint; {last.name}, the last one, which is "
            f"kept: {'; '.join(reasons)}. Train again under another run.name, with a lower training.learning_rate, "
            "fewer steps or fewer trained weights (adapt), or with other conditions"
        )


def _score(context: WorkerContext, outputs: RunFolder, local: Path) -> dict[str, Any] | None:
    """Returns the totals of the test split; without one, only chooses the setting of a search, and returns None."""
    config, sets = context.config, context.task.sets
    others = _others(context)
    if "test" not in sets and not config.decode.settings and not others and config.evaluate.guard is None:
        return None
    # Opened in the same dtype as by `evaluate` with the same recipe.
    recognizer = family_of_folder(local).open_exported(local, config.model.dtype)
    recognizer.model.to(context.device)
    search = open_search(config, sets[VALIDATION], context.session, outputs, recognizer)
    if config.evaluate.guard is not None:
        for name in SOUNDS:
            score_sounds(name, config, context.session, outputs, recognizer, search)
    for name in others:
        score_split(config, sets[name], context.session, outputs, recognizer, name, search)
    if "test" not in sets:
        return None
    return score_split(config, sets["test"], context.session, outputs, recognizer, "test", search)


def _deliver(
    context: WorkerContext,
    outputs: RunFolder,
    best: Checkpoint,
    local: Path,
    test: dict[str, Any] | None,
    conditions: Mapping[str, str],
    chosen: ChosenWeights | None,
    distances: Mapping[str, float] | None,
) -> None:
    """Completes the outputs, adds them to the journal, and publishes them; main process only."""
    for path in local.glob(f"{VALIDATION}*.json*"):
        outputs.storage.upload_file(path, f"{layout.EVALUATION}/{path.name}")
    base = _compared_base(context, outputs, conditions)
    left_out = context.folder.storage.read_bytes(f"{layout.ATTEMPTS}/{context.task.attempt}/{layout.QUARANTINE}")
    measured = Measured.of(outputs, context.task.sets, [json.loads(line) for line in left_out.splitlines()])
    options = context.config.run.storage_options
    verdicts = _judge_all(context, outputs, base) if base is not None else {}
    exported = str(chosen.candidate) if chosen else BEST_CHECKPOINT
    origins = [origin_of(pin, options) for pin in context.task.sources.values() if pin.has_weights]
    family = family_of_folder(local)
    guards = {name: outputs.read_json(f"{layout.EVALUATION}/{name}.json") for name in (*_others(context), *SOUNDS)}
    result = _result(context.task, best, test, base, verdicts) | {
        "weights": chosen.to_json_dict() if chosen is not None else None,
        "layer_distances": distances,
        "guards": {name: totals for name, totals in guards.items() if totals is not None},
    }
    compared = base_section(result, context.config.model.language)
    export_model(outputs, local, model_card(context.config, family, best, measured, origins, exported, compared))
    _enter_result(context.writer, outputs, result)
    publish(context.folder, context.writer.journal)
    if test is not None:
        context.trackers.send(_test_line(context.writer, test))


def _compared_base(context: WorkerContext, outputs: RunFolder, conditions: Mapping[str, str]) -> Base | None:
    """Copies the scores of the initial weights; returns those that were made under the conditions of the result.

    Scores of another test set, or with another decoding, are not compared. Returns None if the run has no scores.
    """
    base = context.writer.check().base
    if base is None:
        return None
    alike = {name: totals for name, totals in base.scores.items() if conditions.get(name) == base.conditions[name]}
    copied = {f"{layout.EVALUATION}/{split}." for name in alike for split in (name, layout.at_full_context(name))}
    for entry in context.folder.storage.list_files(base.folder):
        key = entry.key.removeprefix(f"{base.folder}/")
        if f"{key.rpartition('.')[0]}." in copied or key.endswith(layout.DECODING):
            outputs.storage.write_bytes(f"{layout.BASE}/{key}", context.folder.storage.read_bytes(entry.key))
    return replace(base, scores=alike)


def _test_line(writer: GroupWriter, test: dict[str, Any]) -> str:
    """Returns the test score as a line of metrics of the run's last step."""
    last = newest(writer.journal.read().checkpoints)
    assert last is not None, "what is scored is a checkpoint"
    scores = {name: test[name] for name in known_metrics()} | test.get("metrics", {})
    line = {"step": last.step, "time": layout.now(), **{f"test_{name}": value for name, value in scores.items()}}
    return to_json(line, layout.METRICS)


def _enter_result(writer: GroupWriter, outputs: RunFolder, result: dict[str, Any]) -> None:
    """Completes the outputs, and makes the journal name them as the run's, so that readers use them."""
    metrics = deduplicate(accepted_metrics(writer.folder, writer.check()))
    outputs.storage.write_bytes(layout.METRICS, metrics)
    outputs.write_json(layout.RESULT, result)
    files = [item.key for item in outputs.storage.list_files()]
    entry = {"kind": "finished", "attempt": writer.attempt, "outputs": writer.group.outputs}
    writer.append(lambda state: {**entry, "files": files, "result": result})


def _others(context: WorkerContext) -> list[str]:
    """Returns the names of the sets of evaluate.also."""
    return [name for name in context.task.sets if name not in ("train", VALIDATION, "test")]


def _judge_all(context: WorkerContext, outputs: RunFolder, base: Base) -> dict[str, Verdict]:
    """Returns the verdict on the test set or, without one, the validation set, and on each guard with references."""
    compared = ("test" if "test" in context.task.sets else VALIDATION, *_others(context))
    found = {name: _judge(context, outputs, base, name) for name in compared if name in base.scores}
    if context.task.new_speakers and VALIDATION in base.scores:
        found[NEW_SPEAKERS] = _judge(context, outputs, base, VALIDATION, context.task.new_speakers)
    return {name: verdict for name, verdict in found.items() if verdict is not None}


def _judge(
    context: WorkerContext, outputs: RunFolder, base: Base, split: str, only: Collection[str] | None = None
) -> Verdict | None:
    """Compares the model with the weights that the run began with.

    `only` has the ids of the utterances to compare; None for all. Returns None if none of them was scored, or the model
    lacks a score at its full context.
    """
    if beyond(context.config.model, base.scores[split]) is not None:
        split = layout.at_full_context(split)
    if not outputs.storage.exists(f"{layout.EVALUATION}/{split}.json"):
        return None
    systems = [System.of_folder("base", outputs.sub(layout.BASE), split), System.of_folder("tuned", outputs, split)]
    if only is not None:
        systems = [system.of_utterances(only) for system in systems]
    return Verdict.of(compare_named(systems)) if systems[0].hypotheses else None


def _result(
    task: TrainTask, best: Checkpoint, test: dict[str, Any] | None, base: Base | None, verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    return {
        "best_checkpoint": best.name,
        "best_step": best.step,
        "validation": best.finite_metrics,
        **normalizer_named(task.config.data.normalizer_name).to_json_dict(),
        "test": test,
        "base": base.scores if base is not None else None,
        "verdicts": {name: verdict.to_json_dict() for name, verdict in verdicts.items()},
        "test_data": task.sets["test"].key if "test" in task.sets else None,
        "decode": task.config.decode.model_dump(mode="json"),
        "max_steps": task.config.training.max_steps,
        "num_train_epochs": task.config.training.num_train_epochs,
        "attempt": task.attempt,
        "finished": layout.now(),
    }


def export_model(folder: RunFolder, local: Path, card: str) -> None:
    """Writes the folder model/ of a worker group's outputs, from a checkpoint's local files and a model card."""
    target = folder.storage.sub(MODEL)
    family_of_folder(local).export_processor(local)
    for name in sorted({str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()} - NOT_EXPORTED):
        target.upload_file(local / name, name)
    target.write_bytes("README.md", card.encode())
