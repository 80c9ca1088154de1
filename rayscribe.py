"""Rayscribe from Python; `rayscribe --help` lists the same as commands, and more.

    import rayscribe

    config = rayscribe.load_config("my.yaml", {"training.max_steps": 200})
    result = rayscribe.train(config)
    print(result.headline, result.totals["wer"])
    run = rayscribe.submit("my.yaml", {"run.storage_path": "s3://bucket/runs"}, cluster="speech")

A recipe is the path of a YAML file, or a config. Overrides are values by dotted names, as of `--set`. Relative paths
in a file count from that file, all others from the current folder. What goes wrong is a `RayscribeError`, which names
the thing, the value and the fix.
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
    """The config that a recipe resolves to, with absolute paths and a name of the run; every problem in one error."""
    from trainers.main import load  # noqa: PLC0415

    return load(_arguments(recipe, overrides))


def train(
    recipe: Recipe, overrides: Overrides | None = None, *, address: str | None = None, ray: bool | None = None
) -> "RunResult":
    """Prepares, trains, evaluates and exports, or continues what was interrupted.

    Args:
        recipe: What is trained.
        overrides: Its fields that have other values.
        address: A Ray cluster, host:port. None: RAY_ADDRESS, or this machine.
        ray: Whether to run on Ray; False: all happens in this process. None: on Ray where something needs it, else in
            processes of this machine.
    """
    from trainers.pipeline import verbs  # noqa: PLC0415

    return _call(verbs.train, recipe, overrides, address=address, ray=ray)


def prepare(
    recipe: Recipe, overrides: Overrides | None = None, *, address: str | None = None, ray: bool | None = None
) -> "dict[str, PreparedSet]":
    """Decodes and stores each split, or finds it stored; for the arguments see `train`."""
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
        recipe: Says of which data.
        overrides: Its fields that have other values.
        model: A run, by its name, folder or URL; a folder with a model; or an id of the Hub.
        split: train, validation or test.
        nbest: How many hypotheses of each utterance are written. None: the best alone.
        address: A Ray cluster.
        ray: Whether to run on Ray.
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

    Recordings that cannot be read are in its `quarantined`, by their ids, with the reason.

    Args:
        model: A run, by its name, folder or URL; a folder with a model; or an id of the Hub.
        files: A recording, a folder of them or a manifest; or several recordings.
        overrides: Fields of the run's recipe that have other values.
        out: A file for one recording; or a folder or URL, which a second call goes on with. None: nothing is written.
        format: txt, srt, vtt or jsonl, which a folder has in any case. None: by the file's ending, txt without `out`.
        max_segment_s: Longer recordings are cut at pauses. None: what the model takes, at most 30 s.
        pause_s: A pause of this length separates two segments. Seconds.
        words: Whether times of words are given, where the model knows them.
        address: A Ray cluster.
        num_workers: How many processes transcribe on Ray. None: all that fit.
        ray: Whether to use Ray, which writes to a folder.
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
        recipe: What is trained, or the program that is run.
        overrides: Its fields that have other values.
        address: URL of the cluster's dashboard.
        cluster: A cluster of `rayscribe cluster up`, by its name.
        service: URL of a service. None: RAYSCRIBE_SERVICE, or a ledger of this machine, whose runs advance while a
            command runs: this call returns when Ray has accepted the first attempt.
    """
    from jobs.cli.submit import submit_from_python  # noqa: PLC0415

    return submit_from_python(Path(recipe), _sets(overrides), address, cluster, service)


def main() -> int:
    """The `rayscribe` command; gives its exit code."""
    try:
        from jobs.cli import main as command  # noqa: PLC0415

        return command()
    except KeyboardInterrupt:
        # While something is imported; whatever does more says what it leaves.
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
    """As arguments of `--set`."""
    import yaml  # noqa: PLC0415

    def text(value: Any) -> str:
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        return yaml.safe_dump(plain, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()

    return [f"{name}={text(value)}" for name, value in (overrides or {}).items()]


class _InRepository:
    """Finds `rayscribe.trainers…` where the packages lie next to this file: the very modules `trainers…`."""

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
        """It was executed under its own name, whose spec it gets back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    @staticmethod
    def get_code(name: str) -> Any:
        """For `python -m`."""
        real: Any = find_spec(name.removeprefix("rayscribe."))
        return real.loader.get_code(real.name)


# An installed distribution has the packages in a package of this name, see setup.py.
if "__path__" not in globals():
    __path__: list[str] = []
    sys.meta_path.insert(0, _InRepository)
