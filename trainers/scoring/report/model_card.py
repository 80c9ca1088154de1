"""The model card, which describes a model, its training, its scores and the data on which they were measured.

The Hub reads its metadata: language, base model, data sets, and scores (as a model-index).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from trainers.config.parts.conditions import VALIDATION
from trainers.config.parts.data_part import HubDatasetPart
from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.data.prepared_set import PreparedSet
from trainers.metrics.known_metrics import WER, known_metrics
from trainers.metrics.metric import Metric
from trainers.models.families import decoder_of
from trainers.models.family import Family
from trainers.models.labels import NOT_NAMED
from trainers.models.language_names import code_or_name
from trainers.models.sources.origins import Origin
from trainers.run_folder.hub_push import PLACE
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import EVALUATION, RunFolder
from trainers.scoring.comparison.systems import rows_of
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.ranking import greedy_score
from trainers.scoring.report.base_section import BaseSection
from trainers.scoring.report.score_section import rate_of

TASK = "automatic-speech-recognition"
TEST = "test"
BEST_CHECKPOINT = "the best checkpoint"
# The Hub refuses a card whose language is not an ISO 639 code, or whose base model or data set has no Hub id.
_CODE, _HUB_ID = re.compile(r"[a-z]{2,3}"), re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_COUNTS = {"words": "word", "insertions": "insertion", "deletions": "deletion", "substitutions": "substitution"}
_USE = f"""## Use

```python
from transformers import pipeline

recognize = pipeline("{TASK}", model="{PLACE}")
print(recognize("speech.wav")["text"])
```

The pipeline requires ffmpeg. Or use `rayscribe transcribe {PLACE} speech.wav`, which needs no ffmpeg, and also accepts
long recordings.
"""


@dataclass(frozen=True)
class Measured:
    """Measurements of a model.

    Attributes:
        totals: Scores of validation and test set, as in evaluation/<split>.json.
        rows: The utterances of each set, as in evaluation/<split>.jsonl.
        left_out: Number of clips of each split that were prepared, but neither trained on nor scored.
    """

    totals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    sets: Mapping[str, PreparedSet] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, outputs: RunFolder, sets: Mapping[str, PreparedSet], quarantine: Sequence[Mapping[str, Any]]
    ) -> "Measured":
        """Reads the scores in the outputs of a worker group; `quarantine` has the rows that its attempt left out."""
        found = {split: outputs.read_json(f"{EVALUATION}/{split}.json") for split in (VALIDATION, TEST)}
        totals = {split: content for split, content in found.items() if content is not None}
        rows = {split: rows_of(outputs, f"{EVALUATION}/{split}.jsonl") for split in totals}
        # These counts include rows that could not be prepared.
        counts = Counter(str(row["split"]) for row in quarantine)
        left_out = {split: max(0, counts[split] - item.summary.quarantined) for split, item in sets.items()}
        return cls(totals, rows, sets, left_out)

    @property
    def test(self) -> Mapping[str, Any] | None:
        """Totals of the test set; None without a test set."""
        return self.totals.get(TEST)


def model_card(
    config: TrainConfig,
    family: Family[Any],
    checkpoint: Checkpoint,
    measured: Measured,
    origins: Sequence[Origin] = (),
    exported: str = BEST_CHECKPOINT,
    compared: BaseSection | None = None,
) -> str:
    """Renders the model card of a checkpoint.

    `origins` describe the initial weights, and `exported` the model's; `compared` has the scores of both.
    """
    origin = " and ".join(each.name for each in origins) or "new weights"
    trained = f", adapt.method {config.adapt.method}" if config.adapt.method != "full" else ""
    notes = "\n\n".join(_notes(config, measured))
    return (
        f"---\n{_metadata(config, family, measured, origins).to_yaml()}\n---\n\n# {config.run.name}\n\n"
        f"Trained from {origin} with Rayscribe{trained}, {counted(checkpoint.step, 'step')}; {exported}, chosen by "
        f"{config.checkpoint.score_attribute} on the validation set.\n\n"
        f"## Scores\n\n{_scores(config, checkpoint, measured)}\n\n"
        f"{notes}\n\n{_compared(compared) if compared is not None else ''}{_data(measured)}{_USE}\n"
        f"## Training config\n\n```json\n{json.dumps(config.training.model_dump(mode='json'), indent=1)}\n```\n"
    )


def beyond(model: ModelPart, totals: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the score at the model's full context if it is longer than the training context, else None."""
    full: Mapping[str, Any] | None = totals.get("full_context")
    return full if full is not None and full["context_s"] > (model.max_context_s or full["context_s"]) else None


def _metadata(config: TrainConfig, family: Family[Any], measured: Measured, origins: Sequence[Origin]) -> ModelCardData:
    languages = [code for code in (measured.test or {}).get("languages", {}) if code != NOT_NAMED]
    if len(languages) < 2 and config.model.language is not None:
        languages = [code_or_name(config.model.language)]
    codes = [code for code in languages if _CODE.fullmatch(code)]
    licenses = {each.license for each in origins}
    results = [*_eval_results(config, measured)]
    return ModelCardData(
        language=codes[0] if len(codes) == 1 else codes or None,
        base_model=origins[0].base_model if len(origins) == 1 else None,
        license=config.hub.license or (licenses.pop() if len(licenses) == 1 else None),
        datasets=[*dict.fromkeys(each.name for each in _data_sets(config))] or None,
        pipeline_tag=TASK,
        library_name="transformers",
        tags=[family.name, "rayscribe"],
        model_name=config.run.name if results else None,
        eval_results=results or None,
    )


def _data_sets(config: TrainConfig) -> Iterator[HubDatasetPart]:
    """Yields the config's data sets that are on the Hub."""
    named = (config.data.dataset, *(member.dataset for member in config.data.mix))
    yield from (part for part in named if part is not None and _HUB_ID.fullmatch(part.name))


def _eval_results(config: TrainConfig, measured: Measured) -> Iterator[EvalResult]:
    """Yields the scores that `pipeline` reproduces, on the test set or, without one, on the validation set."""
    split = TEST if measured.test is not None else VALIDATION
    totals = measured.totals.get(split)
    if totals is None:
        return
    # Other users cannot reproduce the score of a search with its own files, or of a shortened context.
    scored = beyond(config.model, totals) or greedy_score(totals)[1]
    part = next(_data_sets(config), None) if not config.data.mix else None
    key = measured.sets[split].key if split in measured.sets else None
    for name in known_metrics():
        if scored.get(name) is not None:
            yield EvalResult(
                task_type=TASK,
                task_name="Automatic Speech Recognition",
                dataset_type=part.name if part is not None else "rayscribe",
                dataset_name=part.name if part is not None else f"the {split} set {key}",
                dataset_config=part.config_name if part is not None else None,
                dataset_revision=part.revision if part is not None else None,
                dataset_split=getattr(part, f"{split}_split", split),
                dataset_args={"prepared_set": key} if key is not None else None,
                metric_type=name,
                metric_name=f"{name.upper()} %",
                metric_value=round(float(scored[name]), 4),
                metric_args={"normalizer": str(normalizer_named(config.data.normalizer_name))},
            )


def _scores(config: TrainConfig, checkpoint: Checkpoint, measured: Measured) -> str:
    rows = [f"| validation | {_rates(checkpoint.metrics, measured.rows.get(VALIDATION), 'eval_')} |"]
    if "eval_full_context_wer" in checkpoint.metrics:
        rows.append(f"| validation, at the full context | {_rates(checkpoint.metrics, prefix='eval_full_context_')} |")
    if (test := measured.test) is not None:
        said = f"test ({test['scored']} of {test['utterances']} utterances)"
        rows.append(f"| {said} | {_rates(test, measured.rows.get(TEST))} |")
        if len(languages := test.get("languages", {})) > 1:
            rows += [
                f"| test, {code} ({counted(score['scored'], 'utterance')}) | {_rates(score)} |"
                for code, score in languages.items()
            ]
        full = beyond(config.model, test)
        if full is not None:
            rows.append(f"| test, at the full context ({full['context_s']:g} s) | {_rates(full)} |")
        name, greedy = greedy_score(test)
        if name is not None:
            rows.append(f"| test, the {name} | {_rates(greedy)} |")
    return _table(["split", *(f"{name.upper()} %" for name in known_metrics())], rows)


def _compared(section: BaseSection) -> str:
    """Returns the sections on the initial weights, and on the weights from which the model was chosen."""
    text = ""
    if section.changes:
        rows = [
            f"| {' | '.join((each.set, each.rate, each.base, each.tuned, each.verdict))} |" for each in section.changes
        ]
        text += f"## Before and after the training\n\n{_table(['set', 'rate', 'before', 'after', 'verdict'], rows)}\n\n"
    if section.candidates:
        names = [*section.candidates[0].rates]
        rows = [f"| {' | '.join((each.name, *each.rates.values(), each.note))} |" for each in section.candidates]
        text += f"## Choice of weights\n\n{_table(['weights', *names, ''], rows)}\n\n"
    return text


def _notes(config: TrainConfig, measured: Measured) -> Iterator[str]:
    how = f"Texts are compared after normalization by {normalizer_named(config.data.normalizer_name)}"
    counts = [
        f"{split}: {', '.join(counted(totals[name], one) for name, one in _COUNTS.items())}"
        for split, totals in measured.totals.items()
        if all(name in totals for name in _COUNTS)
    ]
    bounds = "; 95% bootstrap intervals over utterances are in parentheses" if any(measured.rows.values()) else ""
    yield f"{how}{bounds}.{''.join(f' {text[0].upper()}{text[1:]}.' for text in counts)}"
    part = config.model
    if part.token_language != part.language:
        yield f"The model has no token for {part.language}, and was given that of {part.token_language}."
    if measured.test is not None and (decoder := decoder_of(config.decode)) is not None:
        yield decoder.note(measured.test["decoding"])
    if part.max_context_s is not None:
        yield f"Clips were padded to length buckets of at most {part.max_context_s} s in training."


def _data(measured: Measured) -> str:
    """Returns the section on data, in which a hash of manifest and preparation identifies each prepared set."""
    if not measured.sets:
        return ""
    rows = []
    for split, item in measured.sets.items():
        prepared, hours = item.summary.prepared, item.summary.duration_s / 3600
        used = prepared - measured.left_out.get(split, 0)
        rows.append(f"| {split} | {used} | {prepared} | {hours:.2f} | `{item.key}` |")
    columns = ["split", "clips used", "clips prepared", "hours prepared", "hash of manifest and preparation"]
    return f"## Data\n\n{_table(columns, rows)}\n\n"


def _rates(metrics: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] | None = None, prefix: str = "") -> str:
    """Returns the cells of a row; with intervals if `rows` has its utterances with the metric's edits."""
    cells = []
    for name, metric in known_metrics().items():
        rate = metrics.get(prefix + name)
        bounds = None
        # The interval is that of edits per unit, and edits without a prefix are those of WER.
        is_per_unit = type(metric).rate is Metric.rate and (metric is WER or metric.prefix != "")
        if rows and is_per_unit and metric.units in rows[0] and f"{metric.prefix}insertions" in rows[0]:
            bounds = rate_of(metric, rows, [None] * len(rows)).by_utterance
        shown = "undefined" if rate is None else f"{rate:.2f}"
        cells.append(f"{shown} ({bounds.low:.2f} to {bounds.high:.2f})" if rate is not None and bounds else shown)
    return " | ".join(cells)


def _table(columns: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join((f"| {' | '.join(columns)} |", f"| {' | '.join(['---'] * len(columns))} |", *rows))
