"""Reads a program's progress from the files that it writes. Incomplete files count as missing.

Error rates are in percent here. SpeechBrain writes percent. With the Trainer of transformers, it depends on the
program: the public examples log fractions, others percent.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

TRAINER_STATE, TRAIN_LOG, BRAIN, META = "trainer_state.json", "train_log.txt", "brain.ckpt", "CKPT.yaml"
# Key, among a checkpoint's scores, of the step of the best checkpoint so far according to the Trainer.
BEST_STEP = "best_step"
_RESULTS = ("all_results.json", "eval_results.json", "predict_results.json")
_SCORED_FILE = re.compile(r"([wcs]er)(?:_(.+))?\.txt")
_SCORED_LINE = re.compile(rb"%WER (\d+(?:\.\d+)?) \[")
_RATES = ("wer", "cer", "ser", "mer")
# Values in evaluations by the Trainer that are not scores.
_NO_SCORES = re.compile(r".*_(runtime|per_second|samples|preparation_time|timestamp)|epoch|step|total_flos")
# Entries of SpeechBrain's CKPT.yaml that are not scores.
_NO_SCORES_OF_META = ("unixtime", "end-of-epoch", "epoch")
# Rates are in percent if the largest of each evaluation is above the first value, or any is above the second.
_PERCENT_ABOVE, _PERCENT_ONCE_ABOVE = 3.0, 30.0
_MOST_BYTES = 64 << 20
_HEAD_BYTES = 4096
_MOST_LEVELS = 6


@dataclass(frozen=True)
class ScriptProgress:
    """A program's progress according to its files; values that are not known are None.

    Attributes:
        step: Number of optimizer steps so far, of `max_steps`.
        loss: Loss of the last steps.
        wer: WER in percent, of the last validation or, without a validation, of a test.
        metrics: All last scores by name, such as eval_wer and test_wer; error rates in percent.
    """

    step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    wer: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def read_progress(folder: Path) -> ScriptProgress:
    """Reads the progress of a program from the files below its output folder."""
    files = _newest_files(folder)
    state, results = _read(files.get(TRAINER_STATE)), [_read(files.get(name)) for name in _RESULTS]
    is_percent = _is_percent([*_history(state), *results])
    progress = _of_trainer(state, is_percent) if state else _of_speechbrain(files)
    metrics = dict(progress.metrics)
    for content in results:
        metrics |= _scores(content, is_percent)
    for name, path in files.items():
        match = _SCORED_FILE.fullmatch(name)
        line = _SCORED_LINE.search(_content(path, _HEAD_BYTES)) if match else None
        if match and line:
            metrics[f"{match[2]}_{match[1]}" if match[2] else match[1]] = float(line[1])
    wer = progress.wer if progress.wer is not None else _wer_of(metrics)
    return replace(progress, wer=wer, metrics=metrics)


def scores_at(checkpoint: Path) -> dict[str, float]:
    """Returns the scores of a checkpoint's own step, and its BEST_STEP if known; empty without scores."""
    state = _read(checkpoint / TRAINER_STATE)
    if state:
        entries = _history(state)
        step = state.get("global_step")
        merged = {name: each for entry in entries if entry.get("step") == step for name, each in entry.items()}
        own = _scores(merged, _is_percent(entries))
        best = re.search(r"-(\d+)$", str(state.get("best_model_checkpoint")))
        others = {"loss": _last(entries, "loss"), BEST_STEP: float(best[1]) if best else None}
        return own | {name: value for name, value in others.items() if value is not None}
    meta = _read(checkpoint / META, yaml.safe_load)
    scores = {name: value for name, value in meta.items() if name not in _NO_SCORES_OF_META}
    return {f"eval_{name.lower()}": number for name, value in scores.items() if (number := _number(value)) is not None}


def _of_trainer(state: Mapping[str, Any], is_percent: bool) -> ScriptProgress:
    entries = _history(state)
    scored = [found for entry in entries if (found := _scores(entry, is_percent))]
    metrics = scored[-1] if scored else {}
    return ScriptProgress(
        step=_whole_number(state.get("global_step")),
        max_steps=_whole_number(state.get("max_steps")) or None,
        epoch=_number(state.get("epoch")),
        loss=_last(entries, "loss"),
        wer=_wer_of(metrics),
        metrics=metrics,
    )


def _of_speechbrain(files: Mapping[str, Path]) -> ScriptProgress:
    values: dict[str, float] = {}
    complete = _content(files.get(TRAIN_LOG)).rpartition(b"\n")[0].decode(errors="replace")
    for line in complete.splitlines():
        for part in line.replace(" - ", ", ").split(", "):
            name, _, text = part.partition(": ")
            with contextlib.suppress(ValueError):
                values[name] = float(text)
    metrics = {}
    for name, value in values.items():
        stage, _, score = name.partition(" ")
        if score and stage in ("valid", "test") and math.isfinite(value):
            metrics[f"{'eval' if stage == 'valid' else stage}_{score.lower()}"] = value
    step = _whole_number(_read(files.get(BRAIN), yaml.safe_load).get("optimizer_step"))
    logged = _whole_number(values.get("steps", values.get("step", values.get("epoch"))))
    return ScriptProgress(
        step=step if step is not None else logged,
        epoch=_number(values.get("epoch")),
        loss=_number(values.get("train loss")),
        wer=_wer_of(metrics),
        metrics=metrics,
    )


def _newest_files(folder: Path) -> dict[str, Path]:
    """Returns the newest file of each name that has information on progress."""
    found: dict[str, tuple[int, Path]] = {}
    for parent, folders, names in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= _MOST_LEVELS:
            folders.clear()
        for name in names:
            if name in (TRAINER_STATE, TRAIN_LOG, BRAIN, *_RESULTS) or _SCORED_FILE.fullmatch(name):
                path = Path(parent, name)
                try:
                    changed_ns = path.stat().st_mtime_ns
                except OSError:
                    continue
                if changed_ns >= found.get(name, (0, path))[0]:
                    found[name] = (changed_ns, path)
    return {name: path for name, (_, path) in found.items()}


def _history(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = state.get("log_history")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _scores(entry: Mapping[str, Any], is_percent: bool) -> dict[str, float]:
    """Returns the scores in an entry that an evaluation logged, with error rates in percent."""
    found = {}
    for name, value in entry.items():
        number = _number(value)
        if number is not None and name.startswith(("eval_", "predict_", "test_")) and not _NO_SCORES.fullmatch(name):
            found[name] = number if is_percent or not _is_rate(name) else 100.0 * number
    return found


def _is_percent(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Returns True if a program logs error rates in percent, judged by the largest rate of each evaluation."""
    rates = [
        [number for name, value in entry.items() if _is_rate(name) and (number := _number(value)) is not None]
        for entry in entries
    ]
    largest = [max(each) for each in rates if each]
    return bool(largest) and (min(largest) > _PERCENT_ABOVE or max(largest) > _PERCENT_ONCE_ABOVE)


def _is_rate(name: str) -> bool:
    return any(part in _RATES for part in name.lower().split("_"))


def _wer_of(metrics: Mapping[str, float]) -> float | None:
    """Returns the WER of the validation, else the first other WER by name; None if there is none."""
    names = sorted((name for name in metrics if "wer" in name.split("_")), key=lambda name: (name != "eval_wer", name))
    return metrics[names[0]] if names else None


def _last(entries: Iterable[Mapping[str, Any]], name: str) -> float | None:
    found = [number for entry in entries if (number := _number(entry.get(name))) is not None]
    return found[-1] if found else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _whole_number(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None else None


def _content(path: Path | None, head_bytes: int = -1) -> bytes:
    """Returns the content of a file, or its beginning; empty if the file is unreadable or larger than _MOST_BYTES."""
    if path is None:
        return b""
    try:
        with path.open("rb") as file:
            return file.read(head_bytes) if path.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return b""


def _read(path: Path | None, parse: Callable[[bytes], Any] = json.loads) -> dict[str, Any]:
    try:
        content = parse(_content(path))
    except (ValueError, RecursionError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
