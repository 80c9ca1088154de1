"""Implements `--debug`: runs two batches through every stage of a recipe, in one process and a temporary folder."""

import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, PretrainedConfig, TrainerCallback

from trainers.config.overrides import apply_overrides
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.schema import TrainConfig
from trainers.config.unused_fields import refuse_unused_fields
from trainers.config.wording import counted
from trainers.data.sources.known_sources import source_of
from trainers.distributed.console import print_line
from trainers.distributed.root_cause import converting_errors
from trainers.distributed.session import LocalSession
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import Interruption, RayscribeError, ResumeError, StoppedError
from trainers.models.families import resolve_model
from trainers.models.pretrained import from_pretrained
from trainers.models.sources.model_files import DESCRIPTION, FIELDS
from trainers.models.sources.opened_model import open_sources, pin_sources
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.pipeline.splits import prepare_all
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import FROM
from trainers.training.arguments import silence_libraries
from trainers.training.loop import Loop
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.worker import run_training_worker

BATCH, STEPS = 2, 2
# Clips of each split: two batches of two forward passes each, and spare clips that may be too long or too short.
CLIPS = {"train": 16, "validation": 4, "test": 4}
# Models with random weights rarely generate the end token.
MAX_TOKENS = 100
# Options that CPUs do not support.
LEFT_OUT = ("tf32", "use_liger_kernel")
# Models with fewer weights are used as they are.
LARGE = 5_000_000
WIDTH, FEED_FORWARD, LAYERS, HEADS = 32, 64, 2, 2
# Names of sizes in the configs of architectures, and their maximum in a tiny model.
SIZES = {
    **dict.fromkeys(("d_model", "hidden_size", "encoder_hidden_size", "output_hidden_size", "conv_dim"), WIDTH),
    **dict.fromkeys(("classifier_proj_size", "adapter_attn_dim", "head_dim"), WIDTH // HEADS),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"), FEED_FORWARD),
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_num_key_value_heads", "decoder_num_key_value_heads", "num_key_value_heads"), HEADS),
}
NEW_SIZES = {"d_model": 128, "encoder_layers": 4, "decoder_layers": 2, "ffn_dim": 512, "feature_encoder_dim": 64}


class Stages:
    """Prints the time of each stage when it ends."""

    def __init__(self) -> None:
        self._first = self._since = time.monotonic()
        self._name = self._note = ""

    def begin(self, name: str, note: str = "") -> None:
        """Ends the previous stage and begins another."""
        self.end()
        self._name, self._note, self._since = name, note, time.monotonic()

    def end(self, note: str = "") -> None:
        if self._name:
            self.say(f"{self._name:<9}{time.monotonic() - self._since:5.1f} s · {note or self._note}")
        self._name = ""

    def succeeded(self) -> int:
        self.end()
        self.say(f"all stages work, in {time.monotonic() - self._first:.1f} s; their output is deleted")
        return 0

    def failed(self, error: Exception, exit_code: int) -> int:
        text = " ".join(str(error).split()) or type(error).__name__
        print_line(f"debug: {self._name} failed with exit code {exit_code}: {text}", sys.stderr)
        return exit_code

    @staticmethod
    def say(text: str) -> None:
        print_line(f"debug: {text}")


def debug(config: TrainConfig) -> int:
    """Runs a small version of a recipe, from preparing to scoring the exported model; returns an exit code."""
    silence_libraries()
    stages = Stages()
    with _isolated() as folder:
        try:
            _run(config, folder, stages)
        except (StoppedError, Interruption):
            # The original message has paths in the folder, which is deleted.
            stopped = Interruption()
            stopped.left = "nothing of a debug run is kept"
            raise stopped from None
        except RayscribeError as error:
            return stages.failed(error, error.exit_code)
        except Exception as error:
            # A debug run must catch any error, and report its stage.
            traceback.print_exc()
            return stages.failed(error, RayscribeError.exit_code)
    return stages.succeeded()


@contextmanager
def _isolated() -> Iterator[Path]:
    """Yields a folder for all output, including temporary files, which is deleted at the end.

    Limits torch to one thread, since in steps this small threads mostly wait for each other.
    """
    before, threads = tempfile.tempdir, torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="rayscribe-debug-") as folder:
        tempfile.tempdir = folder
        torch.set_num_threads(1)
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            torch.set_num_threads(threads)


def _run(config: TrainConfig, folder: Path, stages: Stages) -> None:
    stages.begin("model")
    # Checked before the config gets other sizes and no warm-up.
    refuse_unused_fields(config)
    opened = open_sources(config, pin_sources(config), weights=False)
    with opened.named_in_errors():
        config, _ = resolve_model(config, opened)
        model, line = tiny_model(config.model, folder / "model", config.run.seed, opened.applied_to(config.model))
    stages.end(line)
    stages.begin("prepare")
    small = small_config(config.model_copy(update={"model": model}), folder)
    if names := left_out(config):
        stages.say(f"a new run in one process on a CPU, so without {', '.join(names)}")
    sets = prepare_all(small, LocalEngine())
    stages.end(" · ".join(f"{split} {counted(len(item.index), 'clip')}" for split, item in sets.items()))
    stages.begin("train", "a step")
    try:
        fit(small, _StagedEngine(stages, stop_at=1))
    except StoppedError:
        if STOP_SIGNAL.received:
            raise
    stages.begin("resume", "another step, from the checkpoint")
    result = fit(small, _StagedEngine(stages, resumed_from=1))
    stages.begin("score", "the exported model, opened again")
    evaluate(small, LocalEngine(), model=result.folder, split=result.split)


class _StagedEngine(LocalEngine):
    """A LocalEngine that reports the stages, and may stop training after a step, as a stop request would."""

    def __init__(self, stages: Stages, *, stop_at: int | None = None, resumed_from: int = 0):
        super().__init__()
        self.stages, self._stop_at, self._resumed_from = stages, stop_at, resumed_from

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        assert isinstance(task, TrainTask), "only a training has these stages"
        with converting_errors():
            run_training_worker(task, LocalSession.of_this_process(), self._watch)

    def _watch(self, loop: Loop) -> None:
        if loop.first_step != self._resumed_from:
            raise ResumeError(f"training goes on from step {loop.first_step}, not from step {self._resumed_from}")
        loop.trainer.add_callback(_Watch(self.stages, loop, self._stop_at))


class _Watch(TrainerCallback):
    def __init__(self, stages: Stages, loop: Loop, stop_at: int | None):
        self._stages, self._loop, self._stop_at = stages, loop, stop_at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._stop_at:
            self._stages.begin("evaluate", "the validation set")
            self._loop.stop.end_at(state.global_step)
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._stop_at:
            self._stages.begin("save", "a checkpoint, staged and uploaded")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._stop_at is None:
            self._stages.begin("export", "the best checkpoint, scored")


def small_config(config: TrainConfig, folder: Path) -> TrainConfig:
    """Returns the recipe for one CPU with few clips of each split and two steps, and its output in a folder."""
    training = config.training
    arguments = {name: value for name, value in training.training_args.items() if name not in LEFT_OUT}
    if "dataloader_num_workers" in arguments:
        arguments["dataloader_num_workers"] = min(arguments["dataloader_num_workers"], 1)
    utterances = training.per_device_train_batch_size
    if training.max_batch_duration_s is None:
        utterances = min(utterances, BATCH)
    # Truncated, since otherwise all augmentation recordings would be read for a cache that is deleted.
    few = source_of(config.data, config.run.storage_options).truncated(CLIPS, folder)
    data = {"cache_dir": None, "max_bad_fraction": 0.5, "fingerprint": "manifest"}
    changes: dict[str, Any] = {
        "run": {**config.run.model_dump(), "name": "debug", "storage_path": str(folder / "runs"), "resume": "auto"},
        "data": {**few.model_dump(), **data},
        "evaluate": {"base": config.evaluate.base, "also": _few_of_other_sets(config, folder)},
        # A tiny model would be refused.
        "checkpoint.refuse_if": {},
        "scaling": {},
        "hub": {},
        "strategy": {},
        "adapt.n": min(config.adapt.n, LAYERS) if config.adapt.n is not None else None,
        "model.attn_implementation": None if _needs_gpu(config) else config.model.attn_implementation,
        "training.max_steps": STEPS,
        "training.num_train_epochs": None,
        "training.extend": None,
        "training.warmup_steps": 0,
        "training.save_steps": 1,
        "training.eval_steps": None,
        "training.logging_steps": 1,
        "training.per_device_train_batch_size": utterances,
        "training.per_device_eval_batch_size": min(training.per_device_eval_batch_size, BATCH),
        "training.gradient_accumulation_steps": min(training.gradient_accumulation_steps, 2),
        "training.global_batch_size": None,
        "training.fp16": False,
        "training.torch_compile": False,
        "training.report_to": [name for name in training.report_to if name == "tensorboard"],
        "training.training_args": arguments,
    }
    if isinstance(config.decode, GenerationPart):
        changes["decode.max_length"] = min(config.decode.max_length, MAX_TOKENS)
    overrides = [(tuple(name.split(".")), value) for name, value in changes.items()]
    return TrainConfig.model_validate(apply_overrides(config.model_dump(), overrides))


def _few_of_other_sets(config: TrainConfig, folder: Path) -> dict[str, str | None]:
    """Writes manifests of a few clips of each set of evaluate.also; returns their paths by name."""
    few = {}
    for name, location in config.evaluate.also.items():
        (target := folder / "also" / name).mkdir(parents=True)
        source = source_of(config.data.of_other_set(location), config.run.storage_options)
        few[name] = source.truncated(CLIPS, target).test
    return few


def _needs_gpu(config: TrainConfig) -> bool:
    return (config.model.attn_implementation or "").startswith("flash")


def left_out(config: TrainConfig) -> list[str]:
    """Returns the fields that are not tested, since a new run in one process on a CPU does not support them."""
    asked = {
        "run.resume": config.run.resume.startswith(FROM),
        "scaling": config.scaling != ScalingPart(),
        "strategy": config.strategy.is_sharded,
        "training.fp16": config.training.fp16,
        "training.torch_compile": config.training.torch_compile,
        "model.attn_implementation": _needs_gpu(config),
        **{f"training.training_args.{name}": name in config.training.training_args for name in LEFT_OUT},
    }
    return [name for name, is_asked in asked.items() if is_asked]


def tiny_model(model: ModelPart, folder: Path, seed: int, described: ModelPart | None = None) -> tuple[ModelPart, str]:
    """Replaces a large pretrained model by one with few random weights in a new folder.

    `described` is the model part with the folder of the model's description, by default `model`. Returns the new model
    part, and a line that describes the new model.

    Raises:
        ConfigError: config or processor of the weights cannot be opened.
        StorageError: the Hub does not respond.
    """
    if model.init == "scratch":
        smaller = _smaller(model)
        return smaller, "as it is" if smaller == model else "new weights of small sizes"
    opened = described or model
    config = from_pretrained(opened, AutoConfig)
    with torch.device("meta"):
        count = _count(_class_of(config)(config))
    if count < LARGE:
        return model, f"{count / 1e6:.1f} M weights, as they are"
    torch.manual_seed(seed)
    small = _class_of(config)(type(config).from_dict(_shrunk(config.to_dict())))
    small.save_pretrained(folder)
    for file in Path(str(opened.name_or_path)).iterdir():
        wanted = file.name != "config.json" and not file.name.endswith(".index.json")
        if wanted and any(file.match(pattern) for pattern in DESCRIPTION):
            shutil.copyfile(file, folder / file.name)
    origin = model.name_or_path or "the model"
    made = f"{_count(small) / 1e6:.1f} M random weights stand in for the {count / 1e6:.0f} M of {origin}"
    sources = {name: None for name in (*FIELDS, "revision") if name in type(model).model_fields}
    return model.model_copy(update={**sources, "name_or_path": str(folder)}), made


def _smaller(model: ModelPart) -> ModelPart:
    sizes = {name: getattr(model, name, None) for name in NEW_SIZES}
    changes: dict[str, Any] = {name: min(size, NEW_SIZES[name]) for name, size in sizes.items() if size is not None}
    if changes.get("d_model", 0) % getattr(model, "attention_heads", 1):
        changes["attention_heads"] = HEADS
    return model.model_copy(update=changes)


def _shrunk(value: Any, name: str = "") -> Any:
    """Returns the content of a config.json, nested configs included, with small sizes."""
    if isinstance(value, dict):
        return {key: _shrunk(each, key) for key, each in value.items()}
    if name not in SIZES:
        return value
    if isinstance(value, list | tuple):
        return [min(size, SIZES[name]) for size in value]
    return min(value, SIZES[name]) if isinstance(value, int) else value


def _class_of(config: PretrainedConfig) -> Any:
    """Returns the class from which the weights were saved, so that the same weights are missing as in the original."""
    names = config.architectures or []
    return getattr(transformers, names[0], AutoModel.from_config) if names else AutoModel.from_config


def _count(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())
