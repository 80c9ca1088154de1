"""Rayscribe from Python; `rayscribe --help` lists the same functions as commands, and more.

    import rayscribe

    config = rayscribe.load_config("my.yaml", {"training.max_steps": 200})
    result = rayscribe.train(config)
    print(result.headline, result.totals["wer"])
    run = rayscribe.submit("my.yaml", {"run.storage_path": "s3://bucket/runs"}, cluster="speech")

A recipe is the path of a YAML file, or a config. Overrides are values by dotted names, as in `--set`. Relative paths
in a file are relative to its folder, all others to the current folder. Functions raise `RayscribeError`, with field,
value and fix.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Union

from runtime_env.own_code import PACKAGES
from runtime_env.own_code import VERSION as __version__
from trainers.errors import RayscribeError

if TYPE_CHECKING:
    from jobs.model import Run
    from trainers.config.flags.task_line import TaskArguments
    from trainers.config.schema import TrainConfig
    from trainers.data.prepared_set import PreparedSet
    from trainers.pipeline.evaluate import RunResult
    from trainers.pipeline.transcription.transcription import TranscriptionResult
    from trainers.pipeline.verbs import Result, Verb

__all__ = [
    "RayscribeError",
    "__version__",
    "evaluate",
    "load_config",
    "main",
    "prepare",
    "submit",
    "train",
    "transcribe",
]
Recipe = Union[str, "os.PathLike[str]", "TrainConfig"]
Overrides = Mapping[str, Any]


def load_config(recipe: Recipe, overrides: Overrides | None = None) -> "TrainConfig":
    """Returns a recipe's resolved config, with absolute paths and a run name; raises one error with all problems."""
    from trainers.main import load  # noqa: PLC0415

    return load(_arguments(recipe, overrides))


def train(
    recipe: Recipe, overrides: Overrides | None = None, *, address: str | None = None, ray: bool | None = None
) -> "RunResult":
    """Prepares, trains, evaluates and exports, or continues an interrupted run.

    Args:
        recipe: The recipe.
        overrides: Fields of the recipe with other values.
        address: A Ray cluster, host:port. None for RAY_ADDRESS, or this machine.
        ray: True to run on Ray, False to run in this process. None for Ray if the recipe needs it, otherwise processes
            on this machine.
    """
    from trainers.pipeline import verbs  # noqa: PLC0415

    return _call(verbs.train, recipe, overrides, address=address, ray=ray)


def prepare(
    recipe: Recipe, overrides: Overrides | None = None, *, address: str | None = None, ray: bool | None = None
) -> "dict[str, PreparedSet]":
    """Decodes and stores each split, unless it is already stored; for the arguments see `train`."""
    from trainers.pipeline import verbs  # noqa: PLC0415

    return _call(verbs.prepare, recipe, overrides, verb="prepare", address=address, ray=ray)


def evaluate(
    recipe: Recipe,
    overrides: Overrides | None = None,
    *,
    model: str,
    split: str = "test",
    nbest: int | None = None,
    address: str | None = None,
    ray: bool | None = None,
) -> "RunResult":
    """Scores a trained model on a split, into a new folder; for the other arguments see `train`.

    Args:
        recipe: The recipe, with the data.
        overrides: Fields of the recipe with other values.
        model: A run, by its name, folder or URL; a folder with a model; or an id of the Hub.
        split: train, validation or test.
        nbest: Number of hypotheses to write per utterance. None for only the best.
        address: A Ray cluster.
        ray: True to run on Ray.
    """
    scored = {"model": _model(model), "split": split, "nbest": nbest}
    from trainers.pipeline import verbs  # noqa: PLC0415

    return _call(verbs.evaluate, recipe, overrides, verb="evaluate", address=address, ray=ray, **scored)


def transcribe(  # noqa: PLR0913 -- as the command
    model: str,
    files: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    overrides: Overrides | None = None,
    *,
    out: "str | os.PathLike[str] | None" = None,
    format: str | None = None,
    max_segment_s: float | None = None,
    pause_s: float = 0.5,
    words: bool = True,
    address: str | None = None,
    num_workers: int | None = None,
    ray: bool = False,
) -> "TranscriptionResult":
    """Transcribes recordings with a trained model; the transcripts are in the result, or in a folder.

    The result's `quarantined` has the ids of recordings that cannot be read, with the reason.

    Args:
        model: A run, by its name, folder or URL; a folder with a model; or an id of the Hub.
        files: A recording, a folder of them or a manifest; or several recordings.
        overrides: Fields of the run's recipe with other values.
        out: A file for one recording; or a folder or URL, which a second call continues. None to write nothing.
        format: txt, srt, vtt or jsonl, which a folder always gets. None for the file's extension, or txt without `out`.
        max_segment_s: Longer recordings are split at pauses. None for the model's limit, at most 30 s.
        pause_s: A pause of this length separates two segments. Seconds.
        words: True for word timestamps, if the model has them.
        address: A Ray cluster.
        num_workers: Number of processes on Ray. None for as many as fit.
        ray: True to use Ray, which writes to a folder.
    """
    from trainers.pipeline.transcription.transcription_command import transcribe_request  # noqa: PLC0415
    from trainers.pipeline.transcription.transcription_request import TranscriptionRequest  # noqa: PLC0415

    inputs = [files] if isinstance(files, (str, os.PathLike)) else files
    request = TranscriptionRequest(
        _model(model),
        [os.fspath(each) for each in inputs],
        _sets(overrides),
        out=None if out is None else os.fspath(out),
        format=format,
        max_segment_s=max_segment_s,
        pause_s=pause_s,
        words=words,
        ray=ray or address is not None,
        address=address,
        num_workers=num_workers,
    )
    return transcribe_request(request)


def submit(
    recipe: str | os.PathLike[str],
    overrides: Overrides | None = None,
    *,
    address: str | None = None,
    cluster: str | None = None,
    service: str | None = None,
) -> "Run":
    """Checks a recipe, packages the current folder, and queues it as a run, as `rayscribe submit` does.

    Args:
        recipe: The recipe.
        overrides: Fields of the recipe with other values.
        address: URL of the cluster's dashboard.
        cluster: A cluster of `rayscribe cluster up`, by its name.
        service: URL of a service. None for RAYSCRIBE_SERVICE, or the local ledger, whose runs advance only while a
            command runs; the call then returns when Ray has accepted the first attempt.
    """
    from jobs.cli.submit import submit_from_python  # noqa: PLC0415

    return submit_from_python(Path(recipe), _sets(overrides), address, cluster, service)


def main() -> int:
    """Runs the `rayscribe` command; returns its exit code."""
    try:
        from jobs.cli import main as command  # noqa: PLC0415

        return command()
    except KeyboardInterrupt:
        # An interrupt of an import; commands handle later interrupts.
        print("interrupted", file=sys.stderr)
        return 130


def _model(text: str) -> str:
    from jobs.cli.connect import SERVICE_VARIABLE  # noqa: PLC0415
    from jobs.cli.train import model_of  # noqa: PLC0415

    return model_of(text, os.environ.get(SERVICE_VARIABLE), "model")


def _call(run: "Verb[Result]", recipe: Recipe, overrides: Overrides | None, **options: Any) -> "Result":
    from trainers.main import call_from_python  # noqa: PLC0415

    return call_from_python(_arguments(recipe, overrides, **options), run)


def _arguments(recipe: Recipe, overrides: Overrides | None, **options: Any) -> "TaskArguments":
    from trainers.config.flags.task_line import TaskArguments  # noqa: PLC0415

    sets = _sets(overrides)
    if isinstance(recipe, (str, os.PathLike)):
        return TaskArguments(Path(recipe), sets, **options)
    return TaskArguments(Path("config"), sets, recipe=recipe.model_dump(mode="json"), **options)


def _sets(overrides: Overrides | None) -> list[str]:
    """Returns overrides as arguments of `--set`."""
    import yaml  # noqa: PLC0415

    def text(value: Any) -> str:
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        return yaml.safe_dump(plain, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()

    return [f"{name}={text(value)}" for name, value in (overrides or {}).items()]


class _InRepository:
    """Imports `rayscribe.trainers…` as the modules `trainers…`, if the packages are next to this file."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        inner = name.removeprefix("rayscribe.")
        real = find_spec(inner) if inner != name and inner.partition(".")[0] in PACKAGES else None
        return real and ModuleSpec(name, _InRepository, origin=real.origin, loader_state=real)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return import_module(spec.loader_state.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Restores the spec of the module, which was executed under its own name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    @staticmethod
    def get_code(name: str) -> Any:
        """Returns the code for `python -m`."""
        real: Any = find_spec(name.removeprefix("rayscribe."))
        return real.loader.get_code(real.name)


# An installed distribution has the packages in a package of this name, see setup.py.
if "__path__" not in globals():
    __path__: list[str] = []
    sys.meta_path.insert(0, _InRepository)
