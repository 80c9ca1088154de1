"""Measures fine-tuning of OpenAI's Whisper weights: python -m tests.real.measure FOLDER [NAME…] [--model tiny.en].

Each experiment is trained on every fold of its corpus, one after another in this process; runs that FOLDER has are not
trained again. Prints one row for each experiment, with errors added over the folds: of the fold's test set, before and
after the training, at the model's own context and, after a training at a short one, at this; and of the other corpus.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.corpora import DIGITS, LIBRISPEECH, Corpus
from tests.settings import real_weights
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit

ERRORS = ("insertions", "deletions", "substitutions")


@dataclass(frozen=True)
class Experiment:
    """Changes of `RECIPE` by dotted names, and the corpus that the model is tuned on; the other one is scored, too."""

    corpus: Corpus
    changes: Mapping[str, Any]

    @property
    def other(self) -> Corpus:
        return DIGITS if self.corpus is LIBRISPEECH else LIBRISPEECH


RECIPE: Mapping[str, Any] = {
    "data.normalizer": "whisper_english",
    "data.max_duration_s": 30,
    # The longest reference has 68 tokens: a longer limit only costs time where a model repeats itself.
    "decode.max_length": 100,
    "training.max_steps": 40,
    "training.warmup_steps": 4,
    "training.global_batch_size": 8,
    "training.per_device_train_batch_size": 8,
    "training.per_device_eval_batch_size": 8,
    "training.save_steps": 20,
    "training.eval_steps": 20,
    "training.logging_steps": 10,
    "training.report_to": [],
}


def _rates(corpus: Corpus, prefix: str, rates: Sequence[float], **changes: Any) -> dict[str, Experiment]:
    further = {name.replace("__", "."): value for name, value in changes.items()}
    return {f"{prefix}-{rate:g}": Experiment(corpus, {"training.learning_rate": rate, **further}) for rate in rates}


def _at_short_context(corpus: Corpus, prefix: str, rates: Sequence[float], **changes: Any) -> dict[str, Experiment]:
    short = {"model__max_context_s": corpus.short_s, "training__full_context_eval": False}
    return _rates(corpus, prefix, rates, **short, **changes)


RATES = (3.75e-6, 1e-5, 3.75e-5)
# Two and a half passes over 40 clips.
FEW = {
    "training__max_steps": 24,
    "training__global_batch_size": 4,
    "training__eval_steps": 12,
    "training__save_steps": 12,
}
EXPERIMENTS: Mapping[str, Experiment] = {
    **_at_short_context(DIGITS, "digits-short", (*RATES, 1e-4)),
    **_at_short_context(LIBRISPEECH, "libri-short", RATES),
    **_at_short_context(DIGITS, "digits-short-lora", (1e-4, 1e-3), adapt__method="lora"),
    **_at_short_context(DIGITS, "digits-short-matching-0.1", (1e-5, 3.75e-5), model__full_context_matching=0.1),
    **_at_short_context(DIGITS, "digits-short-matching-1", (3.75e-5,), model__full_context_matching=1),
    **_at_short_context(DIGITS, "digits-short-share", (3.75e-5,), training__full_context_fraction=0.1),
    **_at_short_context(DIGITS, "digits-short-decoder", (3.75e-5,), adapt__method="decoder_only"),
    **_rates(DIGITS, "digits-decoder", (3.75e-5,), adapt__method="decoder_only"),
    **_rates(DIGITS, "digits-full", (1e-5, 3.75e-5)),
    **_rates(LIBRISPEECH, "libri-full", (1e-5, 3.75e-5, 1e-3), **FEW),
    **_rates(LIBRISPEECH, "libri-decoder", (3.75e-5,), adapt__method="decoder_only", **FEW),
    **_at_short_context(LIBRISPEECH, "libri-short-lora", (1e-4, 1e-3), adapt__method="lora"),
    **_rates(LIBRISPEECH, "libri-timestamps", (1e-5,), training__keep_timestamps=0.2, **FEW),
}


def tuning(
    folder: Path, weights: Path, run: str, corpus: Corpus, fold: int = 0, changes: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Returns `RECIPE` with changes, for a fold, with the manifests and runs in `folder`."""
    manifests = corpus.write(folder / "manifests", fold)
    return config(
        {
            **RECIPE,
            "run.name": run,
            "run.storage_path": str(folder / "runs"),
            "run.seed": fold,
            **{f"data.{split}": path for split, path in manifests.items()},
            "model": {"name_or_path": str(weights), "language": "English"},
            **(changes or {}),
        }
    )


def measure(name: str, fold: int, folder: Path, model: str) -> dict[str, Any]:
    """Trains an experiment on a fold, unless `folder` has the run; returns the content of its result.json."""
    experiment, run = EXPERIMENTS[name], f"{model}-{name}-{fold}"
    kept = folder / "runs" / run / "result.json"
    if not kept.exists():
        other = {"other": experiment.other.write(folder / "manifests", fold)["test"]}
        changes = {"evaluate.also": other, **experiment.changes}
        fit(tuning(folder, real_weights() / model, run, experiment.corpus, fold, changes), LocalEngine())
    result: dict[str, Any] = json.loads(kept.read_text())
    return result


def counts_of(totals: Mapping[str, Any]) -> tuple[int, int]:
    """Returns errors and words of a score."""
    return sum(totals[kind] for kind in ERRORS), totals["words"]


def at_own_context(totals: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the score at the model's own context of a score that may also have one at a shorter context."""
    own: Mapping[str, Any] = totals.get("full_context") or totals
    return own


def row_of(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Returns the row of an experiment, with errors added over its folds."""
    short = [each["test"] for each in results if "full_context" in each["test"]]
    cells = [
        _rate([at_own_context(each["base"]["test"]) for each in results]),
        _rate([at_own_context(each["test"]) for each in results]),
        _rate(short) if short else "",
        _rate([each["base"]["other"] for each in results]),
        _rate([each["guards"]["other"] for each in results]),
    ]
    cells += [", ".join(each["verdicts"][split]["judgment"] for each in results) for split in ("test", "other")]
    return f"| {' | '.join((name, *cells))} |"


def _rate(totals: Sequence[Mapping[str, Any]]) -> str:
    errors, words = (sum(each) for each in zip(*map(counts_of, totals), strict=True))
    return f"{100 * errors / words:.1f}%"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[*EXPERIMENTS], metavar="NAME")
    parser.add_argument("--model", default="tiny.en")
    given = parser.parse_args(arguments)
    head = ("experiment", "before", "after", "after, short", "other before", "after", "judgments", "of the other")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for name in given.names:
        folds = range(len(EXPERIMENTS[name].corpus.folds))
        print(row_of(name, [measure(name, fold, given.folder.absolute(), given.model) for fold in folds]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
