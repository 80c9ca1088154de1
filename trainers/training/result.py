"""The result of a run: the best checkpoint, scored on the test split and exported, named by the journal."""

from pathlib import Path
from typing import Any

from trainers.errors import FencedError, RayscribeError
from trainers.models.adaptation.lora import merge_once_a_node
from trainers.models.export import export_model
from trainers.models.families import family_of_folder
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, accepted_metrics, publish, without_repeats
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import fetch_best
from trainers.scoring.normalizers import normalizer_named
from trainers.training.callbacks import VALIDATION
from trainers.training.loop import upload_tensorboard
from trainers.training.scoring_worker import Search, opened_beam, score_split
from trainers.training.worker_context import TrainTask, WorkerContext


def finish(context: WorkerContext) -> None:
    """Scores the best checkpoint on the test split and exports it into this group's own folder. Every rank calls it."""
    context.status.show(Phase.EVALUATING, detail="scoring and exporting the best checkpoint")
    outputs = context.folder.sub(context.writer.group.outputs)
    best, local = _fetch_best(context)
    test = _score(context, outputs, local)
    context.session.broadcast(lambda: _deliver(context, outputs, best, local, test), "exporting the model")


def _fetch_best(context: WorkerContext) -> tuple[Checkpoint, Path]:
    found = fetch_best(context.staging, context.writer, context.retention, context.session)
    if found is None:
        raise RayscribeError(
            f"{context.folder.url}: training ended without a checkpoint; this is a bug, please report it"
        )
    best, local = found
    return best, merge_once_a_node(local, context.session)


def _score(context: WorkerContext, outputs: RunFolder, local: Path) -> dict[str, Any] | None:
    """Totals of the test split; None where there is none, and only weights of decoding are chosen."""
    config, sets = context.config, context.task.sets
    if "test" not in sets and not config.decode.is_on:
        return None
    recognizer = family_of_folder(local).open_exported(local)
    recognizer.model.to(context.device)
    with opened_beam(config, sets[VALIDATION], context.session, outputs, recognizer) as beam:
        if "test" not in sets:
            return None
        return score_split(config, sets["test"], context.session, outputs, recognizer, "test", Search(beam))


def _deliver(
    context: WorkerContext, outputs: RunFolder, best: Checkpoint, local: Path, test: dict[str, Any] | None
) -> None:
    """Completes the outputs, enters them in the journal, and shows them; the main process alone."""
    for name in (f"{VALIDATION}.json", f"{VALIDATION}.jsonl"):
        outputs.storage.upload_file(local / name, f"{layout.EVALUATION}/{name}")
    export_model(outputs, context.config, best, local, test)
    _enter_result(context.writer, outputs, _result(context.task, best, test))
    publish(context.folder, context.writer.journal)
    upload_tensorboard(context)


def _enter_result(writer: GroupWriter, outputs: RunFolder, result: dict[str, Any]) -> None:
    """Completes the outputs, and has the journal name them as the run's: from then on they are read."""
    entry = {"kind": "finished", "attempt": writer.attempt, "outputs": writer.group.outputs}
    try:
        metrics = without_repeats(accepted_metrics(writer.folder, writer.check()))
        outputs.storage.write_bytes(layout.METRICS, metrics)
        outputs.write_json(layout.RESULT, result)
        files = [item.key for item in outputs.storage.list_files()]
        writer.append(lambda state: {**entry, "files": files, "result": result})
    except FencedError:
        writer.folder.storage.delete_tree(writer.group.outputs)
        raise


def _result(task: TrainTask, best: Checkpoint, test: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "best_checkpoint": best.name,
        "best_step": best.step,
        "validation": best.finite_metrics,
        **normalizer_named(task.config.data.normalizer_name).to_json_dict(),
        "test": test,
        "test_data": task.sets["test"].key if "test" in task.sets else None,
        "decode": task.config.decode.model_dump(mode="json"),
        "max_steps": task.config.training.max_steps,
        "num_train_epochs": task.config.training.num_train_epochs,
        "attempt": task.attempt,
        "finished": layout.now(),
    }
