"""What makes two runs the same experiment: everything that changes the mathematics, and nothing that does not."""

import uuid
from collections.abc import Mapping
from typing import Any

from trainers.checkpoints import list_checkpoints
from trainers.config import TrainConfig
from trainers.errors import ResumeError
from trainers.run_folder import CHECKPOINTS, EXPERIMENT, RESULT, RunFolder
from trainers.worker import batch_shape

# Fields of `training` that may change within a run: how long, how often it is looked at, and how it is scored.
NOT_MATHEMATICS = {
    "max_steps",
    "num_train_epochs",
    "eval_steps",
    "save_steps",
    "logging_steps",
    "report_to",
    "per_device_eval_batch_size",
    "generation_max_length",
    "generation_num_beams",
    # What they come to is in `utterances_per_step`.
    "per_device_train_batch_size",
    "global_batch_size",
    "gradient_accumulation_steps",
}


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
    return parts


def claim(folder: RunFolder, config: TrainConfig, data_keys: Mapping[str, str]) -> str:
    """Decides whether the run folder may be continued or begun, and writes what the experiment is.

    Returns:
        The run's unique id.

    Raises:
        ResumeError: `resume: never` and the run has checkpoints; or they are of another experiment.
    """
    wanted = describe(config, data_keys)
    known = folder.read_json(EXPERIMENT)
    if known is not None and list_checkpoints(folder.storage.sub(CHECKPOINTS)):
        if config.run.resume == "never":
            raise ResumeError(
                f"{folder.url}: this run has checkpoints, and run.resume is never: "
                "name another run (--set run.name=…), or continue it (--set run.resume=auto)"
            )
        if known["experiment"] != wanted:
            raise ResumeError(
                f"{folder.url}: holds another experiment, so it is not continued:\n"
                + "\n".join(difference(known["experiment"], wanted))
                + "\nname another run (--set run.name=…), or set these back"
            )
        return str(known["id"])
    run_id = uuid.uuid4().hex
    folder.write_json(EXPERIMENT, {"id": run_id, "experiment": wanted})
    return run_id


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each name whose value differs."""
    return [
        f"  - {name}: {old.get(name)!r} → {new.get(name)!r}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def finished(folder: RunFolder, config: TrainConfig) -> dict[str, Any] | None:
    """The result of a run that has reached its last step, None while there is more to train."""
    result: dict[str, Any] | None = folder.read_json(RESULT)
    if result is None:
        return None
    asked = (config.training.max_steps, config.training.num_train_epochs)
    reached = (result["max_steps"], result["num_train_epochs"])
    grown = any(
        now is not None and before is not None and now > before for now, before in zip(asked, reached, strict=True)
    )
    return None if grown else result
