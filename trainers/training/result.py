"""The result of a run: the best checkpoint, scored on the test split and exported, named by the journal."""

from pathlib import Path
from typing import Any

from trainers.errors import FencedError, RayscribeError
from trainers.models.adaptation.lora import merge_once_a_node
from trainers.models.export import export_model
from trainers.models.known_families import family_of_folder
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, accepted_metrics
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.publish import publish
from trainers.run_folder.resume import fetch_best
from trainers.scoring.normalizers import normalizer_named
from trainers.training.callbacks import VALIDATION
from trainers.training.loop import upload_tensorboard
from trainers.training.rank import Rank, WorkOrder
from trainers.training.scoring_worker import Search, opened_beam, score_split


def finish(rank: Rank) -> None:
    """Scores the best checkpoint on the test split and exports it into this group's own folder. Every rank calls it."""
    rank.status.show(Phase.EVALUATING, detail="scoring and exporting the best checkpoint")
    outputs = rank.folder.sub(rank.writer.group.outputs)
    best, local = _fetch_best(rank)
    test = _score(rank, outputs, local)
    rank.session.broadcast(lambda: _deliver(rank, outputs, best, local, test), "exporting the model")


def _fetch_best(rank: Rank) -> tuple[Checkpoint, Path]:
    found = fetch_best(rank.staging, rank.writer, rank.keeping, rank.session)
    if found is None:
        raise RayscribeError(f"{rank.folder.url}: training ended without a checkpoint; this is a bug, please report it")
    best, local = found
    return best, merge_once_a_node(local, rank.session)


def _score(rank: Rank, outputs: RunFolder, local: Path) -> dict[str, Any] | None:
    """Totals of the test split; None where there is none, and only weights of decoding are chosen."""
    config, sets = rank.config, rank.order.sets
    if "test" not in sets and not config.decode.is_on:
        return None
    recognizer = family_of_folder(local).open_exported(local)
    recognizer.model.to(rank.device)
    with opened_beam(config, sets[VALIDATION], rank.session, outputs, recognizer) as beam:
        if "test" not in sets:
            return None
        return score_split(config, sets["test"], rank.session, outputs, recognizer, "test", Search(beam))


def _deliver(rank: Rank, outputs: RunFolder, best: Checkpoint, local: Path, test: dict[str, Any] | None) -> None:
    """Completes the outputs, enters them in the journal, and shows them; the main process alone."""
    for name in (f"{VALIDATION}.json", f"{VALIDATION}.jsonl"):
        outputs.storage.upload_file(local / name, f"{layout.EVALUATION}/{name}")
    export_model(outputs, rank.config, best, local, test)
    _enter_result(rank.writer, outputs, _result(rank.order, best, test))
    publish(rank.folder, rank.writer.journal)
    upload_tensorboard(rank)


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
        "validation": best.finite_metrics,
        **normalizer_named(order.config.data.normalizer_name).to_json_dict(),
        "test": test,
        "test_data": order.sets["test"].key if "test" in order.sets else None,
        "decode": order.config.decode.model_dump(mode="json"),
        "max_steps": order.config.training.max_steps,
        "num_train_epochs": order.config.training.num_train_epochs,
        "attempt": order.attempt,
        "finished": layout.now(),
    }
