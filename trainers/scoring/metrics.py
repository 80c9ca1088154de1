"""Metrics for `evaluate` without downloads: those that are always scored, and a recipe's own.

`evaluate.load("wer")` downloads a script from the Hub at run time. `ErrorRates()` has the same interface on our own
counts; code that only knows `evaluate` uses `evaluate.load("<path of this file>", "wer")`.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import evaluate
from datasets import Features, Value
from evaluate.loading import CachedEvaluationModuleFactory

from trainers.config.parts.scoring_part import CLASS
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import known_metrics
from trainers.scoring.error_rate import score_texts
from trainers.storage.own_folder import own_temporary_folder


class ErrorRates(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """Error rates in percent with the underlying counts; a rate is None if the references are empty.

    `compute` takes the arguments of `error_rate.score_texts`; with `ids`, the result has the score of each utterance in
    `per_utterance`.

    Computes all metrics or, by name, one: `wer` (insertions, deletions, substitutions, words), `cer` (the same in
    characters), `ser` (sentence_errors, utterances).
    """

    def __init__(self, config_name: str | None = None, **options: Any) -> None:
        """Keeps the two columns in memory, instead of in a file in a folder that all processes of a machine share.

        evaluate's distributed mode (`num_process` above 1) does not work in memory, so it uses the files.
        """
        if config_name is not None and config_name not in known_metrics():
            raise ConfigError(f"metric {config_name!r} is not known: use one of {', '.join(known_metrics())}")
        defaults = in_memory() if options.get("num_process", 1) == 1 else {}
        super().__init__(
            config_name, **{**defaults, **{name: value for name, value in options.items() if value is not None}}
        )

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="Levenshtein alignment by jiwer and RapidFuzz: https://github.com/jitsi/jiwer",
            inputs_description=score_texts.__doc__ or "",
            features=Features({"predictions": Value("string"), "references": Value("string")}),
            reference_urls=["https://en.wikipedia.org/wiki/Word_error_rate"],
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str], **given: Any) -> dict[str, Any]:
        score, scores = score_texts(predictions, references, **given)
        result = score.to_json_dict()
        if (metric := known_metrics().get(self.config_name)) is not None:
            counts = score.counts[metric.name]
            result = {key.removeprefix(metric.prefix): value for key, value in metric.of_set(counts).items()}
            result = {metric.units: counts.reference_length, **result}
        return {**result, "per_utterance": scores} if given.get("ids") is not None else result


def in_memory() -> dict[str, Any]:
    """Returns options that keep a metric from clashing with other processes."""
    # evaluate creates this folder even in memory mode, by default in the home folder, which may be read-only.
    folder = str(own_temporary_folder("evaluate"))
    return {"keep_in_memory": True, "experiment_id": uuid4().hex, "cache_dir": folder}


def load_metric(source: str) -> evaluate.EvaluationModule:
    """Returns the metric that a recipe names, see `scoring_part.ScoringPart`. Runs its code, but does not download it.

    Raises:
        Exception: any error of the metric's code; LookupError or OSError if there is no such metric.
    """
    if CLASS.fullmatch(source):
        name, _, attribute = source.partition(":")
        # A job has its working directory in the path, a command does not. Appended, so that it hides no package.
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        found = getattr(importlib.import_module(name), attribute)
    else:
        if source.startswith("/"):
            module = _script(Path(source))
        else:
            cached = source.replace("/", "--") if "/" in source else f"evaluate-metric--{source}"
            module = importlib.import_module(CachedEvaluationModuleFactory(cached).get_module().module_path)
        found = _only_metric_of(module)
    if not (isinstance(found, type) and issubclass(found, evaluate.EvaluationModule)):
        raise TypeError("it is not a subclass of evaluate.Metric")
    # Without a seed, the metric would take one from the state of training's random numbers.
    metric = found(seed=0, **in_memory())
    metric.download_and_prepare()
    return metric


def _script(path: Path) -> ModuleType:
    """Imports a script or, for a folder, the script with the folder's name; files next to it are its submodules.

    evaluate would import a copy, and also download files that the script's comments name.
    """
    script = path / f"{path.name}.py" if path.is_dir() else path
    if not script.is_file():
        raise FileNotFoundError(f"there is no {script}")
    name = f"recipe_metric_{hashlib.sha256(str(script).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, script, submodule_search_locations=[str(script.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python script")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _only_metric_of(module: ModuleType) -> type:
    own = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]
    metrics = [item for item in own if issubclass(item, evaluate.EvaluationModule)]
    if len(metrics) != 1:
        names = ", ".join(item.__name__ for item in metrics)
        raise LookupError(f"{module.__file__} has {len(metrics)} metrics{f' ({names})' if names else ''}, not one")
    return metrics[0]
