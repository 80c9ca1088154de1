"""Command-line flags that the usual fine-tuning scripts have, each as an override of the field that it means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.config.overrides import Override

DEFAULT_DATASET = "google/fleurs"
# Of the widely used recipe for Whisper; with fewer steps, a tenth of them warm up.
DEFAULT_MAX_STEPS, DEFAULT_WARMUP_STEPS = 5000, 500
STORAGE_VARIABLE = "BUCKET_URI"


@dataclass(frozen=True)
class Flag:
    """A flag and the field that it sets.

    Attributes:
        names: Spellings.
        field: Dotted name of the field.
        kind: Type of the value; bool for a switch.
        help: Explanation.
    """

    names: tuple[str, ...]
    field: str
    kind: type
    help: str

    @property
    def key(self) -> str:
        """The name under which argparse keeps the value."""
        return self.names[0].lstrip("-").replace("-", "_")


def _training(name: str, kind: type, meaning: str) -> Flag:
    return Flag((f"--{name}", f"--{name.replace('_', '-')}"), f"training.{name}", kind, meaning)


FLAGS = (
    Flag(
        ("--model_size", "--model-size"),
        "model.name_or_path",
        str,
        "tiny, base, small, …: openai/whisper-<size>",
    ),
    Flag(("--model_name_or_path",), "model.name_or_path", str, "Hub id or folder of pretrained weights"),
    Flag(("--dataset",), "data.dataset.name", str, f"Hub id of the data set (default: {DEFAULT_DATASET})"),
    Flag(("--name",), "data.dataset.config_name", str, "language config of the data set, e.g. sr"),
    Flag(("--language",), "model.language", str, "language of the speech, e.g. Serbian"),
    Flag(("--task",), "model.task", str, "transcribe or translate"),
    _training("per_device_train_batch_size", int, "utterances of one forward pass of a worker"),
    _training("per_device_eval_batch_size", int, "utterances of one generate call"),
    _training("gradient_accumulation_steps", int, "forward passes per optimizer step"),
    _training("learning_rate", float, "peak learning rate"),
    _training("warmup_steps", int, "steps from zero to the peak learning rate (default: max_steps / 10, at most 500)"),
    _training("max_steps", int, "optimizer steps"),
    _training("save_steps", int, "checkpoint this often"),
    _training("eval_steps", int, "score the validation set this often"),
    _training("logging_steps", int, "report the loss this often"),
    _training("generation_max_length", int, "most tokens of a hypothesis"),
    _training("fp16", bool, "16-bit floats"),
    _training("bf16", bool, "bfloat16"),
    _training("gradient_checkpointing", bool, "recompute activations to save memory"),
    Flag(("--num-workers", "--num_workers"), "scaling.num_workers", int, "training workers"),
    Flag(("--use-gpu", "--use_gpu"), "scaling.use_gpu", bool, "one GPU for each worker"),
    Flag(("--seed",), "run.seed", int, "seed"),
    Flag(("--run-name", "--run_name"), "run.name", str, "name of the run"),
    Flag(("--storage-path", "--storage_path"), "run.storage_path", str, "folder or s3:// URL of runs"),
)


def overrides_of(values: Mapping[str, Any]) -> list[Override]:
    """The overrides that the given flags stand for.

    Args:
        values: Value of each flag by its key; None where it was not given.
    """
    found: list[Override] = []
    for flag in FLAGS:
        value = values.get(flag.key)
        if value is None or value is False:
            continue
        if flag.key == "model_size":
            value = f"openai/whisper-{value}"
        found.append((tuple(flag.field.split(".")), value))
    return found


def base_of_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config that flags alone start from, without a file: a Hub data set and pretrained weights."""
    name = values.get("dataset") or DEFAULT_DATASET
    columns = {"audio_column_name": "audio"}
    if name == DEFAULT_DATASET:
        columns["text_column_name"] = "raw_transcription"
    weights = values.get("model_size") or Path(str(values.get("model_name_or_path"))).name.removeprefix("whisper-")
    words = "-".join(str(part).lower() for part in ("whisper", weights, values.get("name")) if part)
    steps = values.get("max_steps") or DEFAULT_MAX_STEPS
    return {
        "run": {"name": re.sub(r"[^a-z0-9._-]+", "-", words).strip("-")},
        "data": {"dataset": {"name": name}, **columns},
        "model": {"init": "pretrained"},
        "training": {"max_steps": DEFAULT_MAX_STEPS, "warmup_steps": min(DEFAULT_WARMUP_STEPS, steps // 10)},
    }


def storage_override(environment: Mapping[str, str]) -> list[Override]:
    """`BUCKET_URI`, where it is set, is the storage."""
    value = environment.get(STORAGE_VARIABLE)
    return [(("run", "storage_path"), value)] if value else []
