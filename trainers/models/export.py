"""The best checkpoint as a folder that `from_pretrained` and `pipeline` open, with a model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainers.config.parts.decode_part import FILE_FIELDS
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.metrics.known_metrics import known_metrics
from trainers.models.families import family_of_folder
from trainers.models.family import Family
from trainers.models.labels import NOT_NAMED
from trainers.models.sources.source_pin import WITH_WEIGHTS
from trainers.run_folder.checkpoints import TRAINING_STATE
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import MODEL, RunFolder

NOT_EXPORTED = TRAINING_STATE | {"validation.json", "validation.jsonl", "processor_config.json"}


def export_model(
    folder: RunFolder, config: TrainConfig, checkpoint: Checkpoint, local: Path, test: dict[str, Any] | None
) -> None:
    """Writes model/ of a worker group's outputs, from the best checkpoint's files here and totals of test."""
    target, family = folder.storage.sub(MODEL), family_of_folder(local)
    stored = {str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()}
    for name in sorted((stored | family.write_legacy_processor_files(local)) - NOT_EXPORTED):
        target.upload_file(local / name, name)
    target.write_bytes("README.md", model_card(config, family, checkpoint, test).encode())


def model_card(config: TrainConfig, family: Family[Any], checkpoint: Checkpoint, test: dict[str, Any] | None) -> str:
    """Renders the model card: what it is, how it was trained, how good it is and on what."""
    header: dict[str, Any] = {
        "pipeline_tag": "automatic-speech-recognition",
        "library_name": "transformers",
        "tags": [family.name, "rayscribe"],
    }
    part, borrowed = config.model, ""
    if part.token_language != part.language:
        header["language"] = str(part.language).lower()
        borrowed = f"The model has no token for {part.language}, and was given that of {part.token_language}.\n\n"
    elif part.language is not None:
        header["language"] = family.language_code(part.language)
    if config.model.name_or_path is not None:
        source = ModelSource.parse(config.model.name_or_path)
        header["base_model"] = source.address if source.kind is SourceKind.HUB else source.text
    texts = [getattr(config.model, name, None) for name in WITH_WEIGHTS]
    origin = " and ".join(ModelSource.parse(text).text for text in texts if text is not None) or "new weights"
    rows = [f"| validation | {_rates(checkpoint.metrics, 'eval_')} |"]
    if "eval_full_context_wer" in checkpoint.metrics:
        rows.append(f"| validation, at the full context | {_rates(checkpoint.metrics, 'eval_full_context_')} |")
    if test is not None:
        rows.append(f"| test ({test['scored']} of {test['utterances']} utterances) | {_rates(test, '')} |")
        if len(languages := test.get("languages", {})) > 1:
            header["language"] = [code for code in languages if code != NOT_NAMED]
            rows += [
                f"| test, {code} ({counted(score['scored'], 'utterance')}) | {_rates(score, '')} |"
                for code, score in languages.items()
            ]
        full = beyond(config.model, test)
        if full is not None:
            rows.append(f"| test, at the full context ({full['context_s']:g} s) | {_rates(full, '')} |")
        if "best_path" in test:
            rows.append(f"| test, the best path | {_rates(test['best_path'], '')} |")
            borrowed += _searched(test["decoding"])
    columns = ["split", *(f"{name.upper()} %" for name in known_metrics())]
    table = "\n".join((f"| {' | '.join(columns)} |", f"| {' | '.join(['---'] * len(columns))} |", *rows))
    padding = (
        f"Clips were padded to length buckets of at most {config.model.max_context_s} s in training.\n\n"
        if config.model.max_context_s is not None
        else ""
    )
    trained = f", adapt.method {config.adapt.method}" if config.adapt.method != "full" else ""
    return (
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n# {config.run.name}\n\n"
        f"Trained from {origin} with Rayscribe{trained}, {counted(checkpoint.step, 'step')}; the best checkpoint by "
        f"{config.checkpoint.score_attribute} on the validation set.\n\n"
        f"{table}\n\n{borrowed}{padding}"
        "## Use\n\n```python\nfrom transformers import pipeline\n\n"
        'recognize = pipeline("automatic-speech-recognition", model="<this folder>")\n'
        'print(recognize("speech.wav")["text"])\n```\n\n'
        f"## Training config\n\n```json\n{json.dumps(config.training.model_dump(mode='json'), indent=1)}\n```\n"
    )


def beyond(model: ModelPart, totals: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The score at the model's full context, where that is longer than the one that it is trained at; else None."""
    full: Mapping[str, Any] | None = totals.get("full_context")
    return full if full is not None and full["context_s"] > (model.max_context_s or full["context_s"]) else None


def _searched(decoding: dict[str, Any]) -> str:
    """How the scores of test were made, which `pipeline` does not repeat."""
    parts = [f"beam_size {decoding['beam_size']}"]
    for name in FILE_FIELDS:
        if name in decoding:
            parts.append(f"{name} {Path(decoding[name]['path']).name} (SHA-256 {decoding[name]['sha256']})")
    if "rescoring_model" in decoding:
        name = decoding["rescoring_model"]["name_or_path"]
        parts.append(f"rescoring_model {Path(name).name if Path(name).is_absolute() else name}")
    parts += [f"{name} {decoding[name]:g}" for name in ("lm_weight", "word_score", "rescoring_weight")]
    return (
        f"The score on test is of a beam search, whose files are not part of this folder: {', '.join(parts)}. "
        "`pipeline` takes the best path, as do the scores on validation.\n\n"
    )


def _rates(metrics: Mapping[str, Any], prefix: str) -> str:
    rates = (metrics.get(prefix + name) for name in known_metrics())
    return " | ".join("undefined" if rate is None else f"{rate:.2f}" for rate in rates)
