"""Scores the weights that a run begins with, before its first step.

The scores are stored below the storage path, by a hash of everything that determines them, so that all runs with the
same weights, data and decoding share them; each run has a copy:

base_scores/<hash>/evaluation/<name>.json .jsonl      and decoding.json, if the setting of a search was chosen
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainers.config.locations import storage_path_of
from trainers.config.parts.conditions import VALIDATION
from trainers.config.parts.run_part import BASE_SCORES
from trainers.data.sounds import SOUNDS
from trainers.distributed.console.events import Stage
from trainers.models.families import decoder_of
from trainers.models.recognizer import Recognizer, Search
from trainers.models.sources.model_files import FIELDS
from trainers.run_folder.attempt_status import Phase
from trainers.run_folder.journal import Base
from trainers.run_folder.layout import ATTEMPTS, DECODING, EVALUATION, RunFolder, version_of
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.ranking import rates_of
from trainers.storage import open_storage
from trainers.training.arguments import autocast_dtype
from trainers.training.base.initial_model import open_initial
from trainers.training.scoring_worker import open_search, score_initial, score_sounds
from trainers.training.worker_context import ResumePoint, WorkerContext

# Increased when scores of the same weights change, so that those of older versions are not reused.
SCORES_VERSION = 1
_DATA_FIELDS = {"min_duration_s", "max_duration_s", "too_long_eval", "use_language_column"}
_PACKAGES = ("torch", "transformers")
# Fields of the model part that have no effect on scores.
_TRAINING_FIELDS = {
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "hidden_dropout",
    "feat_proj_dropout",
    "final_dropout",
    "layerdrop",
    "apply_spec_augment",
    "mask_time_prob",
    "mask_time_length",
    "mask_feature_prob",
    "mask_feature_length",
    "full_context_matching",
    "full_context_matching_fraction",
}


def score_base(
    context: WorkerContext, weights: ResumePoint | None, conditions: Mapping[str, str] | None = None
) -> None:
    """Scores the initial weights on every set but the training set, and adds the scores to the journal.

    `conditions` are those of `conditions_of_scores`, if they are known, since they hash files. Does nothing if the run
    has these scores, if the config turns them off, or if weights are new, so that there is nothing to compare with.
    Every rank calls this.
    """
    if not (context.config.evaluate.base and context.task.has_base):
        return
    base, wanted = _Base(context, weights), conditions or conditions_of_scores(context)
    known = context.session.broadcast(lambda: context.writer.check().base, "looking for the scores of the base")
    if known is not None and known.conditions == wanted and known.weights == base.identity:
        return
    context.session.show_from_main(Stage("base", "scoring the weights that the run begins with"))
    folders = {}
    for number, (name, of_set) in enumerate(wanted.items(), 1):
        detail = f"scoring the weights that the run begins with on {name} (set {number} of {len(wanted)})"
        context.status.update(Phase.TRAINING, detail=detail)
        folders[name] = base.score(name, of_set)
    context.session.broadcast(lambda: _enter(context, folders, wanted, base.identity), "adding the scores of the base")


def base_line(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns `base: validation WER 15.4% · librispeech WER 12.2% · silence 2.2 words/min`."""
    parts = []
    for name, totals in scores.items():
        if name in SOUNDS:
            parts.append(f"{name} {totals['words_per_minute']:.1f} words/min")
        else:
            parts.append(f"{name} {rates_of(totals.get('full_context') or totals, totals['language'])}")
    return f"base: {' · '.join(parts)}"


def conditions_of_scores(context: WorkerContext) -> dict[str, str]:
    """Returns a hash of what the scores of each set depend on, besides the weights; every rank calls this."""
    found: dict[str, str] = context.session.broadcast(lambda: _conditions(context), "hashing the conditions of scores")
    return found


def weights_identity(context: WorkerContext, weights: ResumePoint | None) -> str:
    """Returns a hash of what identifies initial weights, and the files that describe their model."""
    if weights is not None:
        return hash_of_content({name: entry["sha256"] for name, entry in weights.checkpoint.files.items()})
    pins = context.task.sources.values()
    return hash_of_content({pin.field: [pin.address, pin.revision, pin.sha256] for pin in pins})


@dataclass
class _Base:
    """The initial weights, which are opened only if scores of them are missing."""

    context: WorkerContext
    weights: ResumePoint | None

    @cached_property
    def identity(self) -> str:
        return weights_identity(self.context, self.weights)

    def score(self, name: str, conditions: str) -> RunFolder:
        """Returns the folder with the scores of a set, computed if missing. Every rank calls this."""
        context, config, session = self.context, self.context.config, self.context.session
        key = hash_of_content([name, self.identity, conditions])
        folder = RunFolder(open_storage(f"{storage_path_of(config)}/{BASE_SCORES}/{key}", config.run.storage_options))
        # The totals are written last.
        done = f"{EVALUATION}/{name}.json"
        if not session.broadcast(lambda: folder.storage.exists(done), f"looking for scores of {name}"):
            session.show_from_main(f"base: scoring {name}")
            # Checkpoints are scored on the validation set without a search, too.
            search, chosen = self._search if name != VALIDATION else (None, None)
            if chosen is not None and session.is_main_process:
                folder.write_json(f"{EVALUATION}/{DECODING}", chosen)
            if name in context.task.sets:
                score_initial(config, context.task.sets[name], session, folder, self._recognizer, name, search)
            else:
                score_sounds(name, config, session, folder, self._recognizer, search)
        return folder

    @cached_property
    def _recognizer(self) -> Recognizer:
        recognizer = open_initial(self.context, self.weights)
        recognizer.model.to(self.context.device)
        return recognizer

    @cached_property
    def _search(self) -> tuple[Search | None, Any]:
        """The search of the config, and the content of decoding.json if its setting was chosen."""
        context = self.context
        outputs = context.folder.sub(_own_folder(context))
        validation = context.task.sets[VALIDATION]
        search = open_search(context.config, validation, context.session, outputs, self._recognizer)
        return search, outputs.read_json(f"{EVALUATION}/{DECODING}") if context.session.is_main_process else None


def hash_of_content(content: Any) -> str:
    """Returns a short hash of a JSON document, in which the order of names does not count."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _conditions(context: WorkerContext) -> dict[str, str]:
    config, sets = context.config, context.task.sets
    others = {*FIELDS, "init", "family", *_TRAINING_FIELDS}
    decoder = decoder_of(config.decode)
    hashes = decoder.content_hashes(config.decode, config.run.storage_options) if decoder else {}
    # Runs do not share scores that depend on content that is not hashed: a recipe's own metrics, large language models.
    is_hashed = not config.scoring.metrics and hashes.keys() == {*config.decode.sources}
    common = {
        "version": SCORES_VERSION,
        "packages": {name: version_of(name) for name in _PACKAGES},
        "bounds": config.data.model_dump(mode="json", include=_DATA_FIELDS),
        "model": config.model.model_dump(mode="json", exclude=others),
        "decode": config.decode.model_dump(mode="json"),
        "decode_files": hashes,
        # The set and the rate by which the setting of a search is chosen.
        "tuned": [sets[VALIDATION].key, config.checkpoint.score_attribute] if config.decode.is_tuned else None,
        "normalizer": str(normalizer_named(config.data.normalizer_name)),
        "metrics": dict(config.scoring.metrics),
        "run": None if is_hashed else context.task.run_id,
        "autocast": str(autocast_dtype(config)),
    }
    guards = SOUNDS if config.evaluate.guard is not None else {}
    names = (*(name for name in sets if name != "train"), *guards)
    return {name: hash_of_content([common, sets[name].key if name in sets else None]) for name in names}


def _own_folder(context: WorkerContext) -> str:
    return f"{ATTEMPTS}/{context.writer.attempt}/base-{context.writer.group.id}"


def _enter(
    context: WorkerContext, folders: Mapping[str, RunFolder], conditions: Mapping[str, str], identity: str
) -> None:
    """Copies scores to the run, and makes the journal name them; main process only."""
    writer, own = context.writer, _own_folder(context)
    target, scores = writer.folder.sub(own), dict[str, Any]()
    for name, folder in folders.items():
        for entry in folder.storage.list_files(EVALUATION):
            target.storage.write_bytes(entry.key, folder.storage.read_bytes(entry.key))
        scores[name] = folder.read_json(f"{EVALUATION}/{name}.json")
    context.session.show_from_main(base_line(scores))
    base = Base(own, scores, conditions, identity)
    writer.append(lambda _: {"kind": "base", "attempt": writer.attempt, **base.to_json_dict()})
