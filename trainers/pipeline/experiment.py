"""What makes two runs the same experiment: everything that changes the mathematics, and nothing that does not."""

import uuid
from collections.abc import Mapping
from typing import Any

from trainers.config.schema import ModelPart, TrainConfig, TrainingPart
from trainers.errors import ResumeError
from trainers.run_folder.journal import State
from trainers.run_folder.layout import CHECKPOINTS, RESULT, RunFolder
from trainers.training.planning import batch_shape

# Fields of `training` that may change within a run: how long it is, how often it reports, how fast it computes.
NOT_MATHEMATICS = {
    "max_steps",
    "num_train_epochs",
    "eval_steps",
    "save_steps",
    "logging_steps",
    "report_to",
    "per_device_eval_batch_size",
    # What they come to is in `utterances_per_step`.
    "per_device_train_batch_size",
    "global_batch_size",
    "gradient_accumulation_steps",
    # Compared one by one, without those that only load and log.
    "training_args",
}
NOT_MATHEMATICS_PREFIXES = ("dataloader_", "log_", "logging_", "disable_tqdm", "report_to")


def describe(config: TrainConfig, data_keys: Mapping[str, str]) -> dict[str, Any]:
    """The experiment as flat names and values, for comparing and for showing a difference.

    Args:
        config: The config.
        data_keys: Hash of the prepared set of each split.
    """
    shape = batch_shape(config, config.scaling.num_workers)
    parts: dict[str, Any] = {
        "run.seed": config.run.seed,
        "data.train": data_keys["train"],
        # What chooses the best: scores of two validation sets, or of two ways to score, do not rank together.
        "data.validation": data_keys["validation"],
        "data.do_normalize_eval": config.data.do_normalize_eval,
        "checkpoint.checkpoint_score_attribute": config.checkpoint.checkpoint_score_attribute,
        "data.min_duration_s": config.data.min_duration_s,
        "data.max_duration_s": config.data.max_duration_s,
        "training.utterances_per_step": shape.global_batch_size,
        "training.forward_passes_per_step": shape.slots if shape.global_batch_size is None else None,
    }
    for name, value in config.model.model_dump(mode="json").items():
        parts[f"model.{name}"] = value
    for name, value in config.training.model_dump(mode="json").items():
        if name not in NOT_MATHEMATICS:
            parts[f"training.{name}"] = value
    for name, value in config.training.training_args.items():
        if not name.startswith(NOT_MATHEMATICS_PREFIXES):
            parts[f"training.training_args.{name}"] = value
    return parts


def resolve_experiment(
    state: State, folder: RunFolder, config: TrainConfig, data_keys: Mapping[str, str], *, retried: bool = False
) -> dict[str, Any]:
    """Decides whether a run may be continued or begun, and as which experiment.

    Args:
        state: What its journal comes to.
        folder: The run folder, for the messages.
        config: The config.
        data_keys: Hash of the prepared set of each split.
        retried: A service repeats an attempt of this very run, so that `resume: never` does not refuse it.

    Returns:
        The experiment: its unique id, and its description.

    Raises:
        ResumeError: `resume: never` and the run has checkpoints; or they are of another experiment.
    """
    wanted = describe(config, data_keys)
    begun = bool(state.checkpoints or state.quarantined) or state.finished is not None
    if begun and config.run.resume == "never" and not retried:
        raise ResumeError(
            f"{folder.url}: this run has begun, and run.resume is never: "
            "name another run (--set run.name=…), or continue it (--set run.resume=auto)"
        )
    known = state.experiment
    before = _with_later_fields(known["experiment"]) if known is not None else None
    if known is not None and before == wanted:
        _refuse_fewer_steps(state, folder, config)
        return known
    if before is not None and begun:
        raise ResumeError(
            f"{folder.url}: holds another experiment, so it is not continued:\n"
            + "\n".join(difference(before, wanted))
            + "\nname another run (--set run.name=…), or set these back"
        )
    return {"id": uuid.uuid4().hex, "experiment": wanted}


def _with_later_fields(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description as this version would have written it: fields that came later are at their defaults."""
    defaults = {
        f"{part}.{name}": field.get_default(call_default_factory=True)
        for part, model in (("model", ModelPart), ("training", TrainingPart))
        for name, field in model.model_fields.items()
        if not field.is_required() and (part == "model" or name not in NOT_MATHEMATICS)
    }
    return {**defaults, **description}


def refuse_without_journal(state: State, folder: RunFolder) -> None:
    """Refuses a folder whose checkpoints no journal vouches for, instead of beginning anew beside them.

    Raises:
        ResumeError: it holds checkpoints or a result, and no journal.
    """
    if state.number == 0 and (folder.storage.exists(RESULT) or folder.storage.list_folders(CHECKPOINTS)):
        raise ResumeError(
            f"{folder.url}: holds checkpoints or a result but no journal, so it is not known which of them count; "
            "name another run (--set run.name=…), starting from one of them where wanted (--set run.resume=from:…)"
        )


def _refuse_fewer_steps(state: State, folder: RunFolder, config: TrainConfig) -> None:
    last = max((item.step for item in state.checkpoints), default=0)
    if config.training.max_steps is not None and config.training.max_steps < last:
        raise ResumeError(
            f"{folder.url}: training.max_steps is {config.training.max_steps}, but the run is at step {last}: "
            "raise max_steps, or name another run (--set run.name=…)"
        )


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each name whose value differs."""
    return [
        f"  - {name}: {old.get(name)!r} → {new.get(name)!r}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def finished(state: State, folder: RunFolder, config: TrainConfig, data_keys: Mapping[str, str]) -> bool:
    """Whether a run has reached its last step and has the result that is asked for.

    Raises:
        ResumeError: it has finished with another test set, whose score must not be taken for this one's.
    """
    if state.finished is None:
        return False
    result = state.finished.result
    asked = [config.training.max_steps, config.training.num_train_epochs]
    if [result["max_steps"], result["num_train_epochs"]] != asked:
        return False
    if result["test_data"] != data_keys.get("test"):
        raise ResumeError(
            f"{folder.url}: this run has finished and is scored on another test set; score its model on this one "
            f"with: rayscribe evaluate SPEC --model {folder.url}"
        )
    return True
