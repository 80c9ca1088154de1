"""Scores the weights that a run begins with, before its first step.

The scores are stored below the storage path, by a hash of everything that determines them, so that all runs with the
same weights, data and decoding share them; each run has a copy:

base_scores/<hash>/evaluation/<split>.json .jsonl      and decoding.json, if the setting of a search was chosen
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.config.locations import storage_path_of
from trainers.config.parts.run_part import BASE_SCORES
from trainers.config.schema import TrainConfig
from trainers.distributed.console.events import Stage
from trainers.models.recognizer import Recognizer
from trainers.run_folder.attempt_status import Phase
from trainers.run_folder.layout import ATTEMPTS, EVALUATION, RunFolder, version_of
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.sounds import SOUNDS
from trainers.storage import open_storage
from trainers.training.arguments import autocast_dtype
from trainers.training.callbacks import VALIDATION
from trainers.training.initial_model import open_initial
from trainers.training.scoring_worker import open_search, score_sounds, score_split
from trainers.training.worker_context import ResumePoint, WorkerContext

# Fields of the model part that change what given weights recognize.
_MODEL_FIELDS = {"language", "task", "dtype", "attn_implementation", "max_context_s"}
_DATA_FIELDS = {"min_duration_s", "max_duration_s", "too_long_eval", "use_language_column"}
_PACKAGES = ("torch", "transformers", "rayscribe")


def score_base(context: WorkerContext, weights: ResumePoint | None) -> None:
    """Scores the initial weights on the validation and test sets, and adds the scores to the journal.

    Does nothing if the run has these scores, if the config turns them off, or if weights are new, so that there is
    nothing to compare with. Every rank calls this.
    """
    if not (context.config.evaluate.base and _recognizes(context, weights)):
        return
    if context.session.broadcast(lambda: context.writer.check().base, "looking for the scores of the base") is not None:
        return
    context.session.show_from_main(Stage("base", "scoring the weights that the run begins with"))
    context.status.update(Phase.TRAINING, detail="scoring the weights that the run begins with")
    base = _Base(context, weights)
    guards = SOUNDS if context.config.evaluate.guard is not None else {}
    names = (*(split for split in context.task.sets if split != "train"), *guards)
    folders = {name: base.score(name) for name in names}
    context.session.broadcast(lambda: _enter(context, folders), "adding the scores of the base")


def _recognizes(context: WorkerContext, weights: ResumePoint | None) -> bool:
    """Returns True if the initial weights are those of a complete recognizer."""
    is_complete = context.config.model.name_or_path is not None and context.task.processor is None
    return weights is not None or is_complete


@dataclass
class _Base:
    """The initial weights, which are opened only if scores of them are missing."""

    context: WorkerContext
    weights: ResumePoint | None
    _opened: list[Recognizer] = field(default_factory=list)

    def score(self, name: str) -> RunFolder:
        """Returns the folder with the scores of a split or guard, computed if missing. Every rank calls this."""
        config, session, sets = self.context.config, self.context.session, self.context.task.sets
        content = {"set": name, "weights": self._identity(), **_determining(config, name, sets)}
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        folder = RunFolder(open_storage(f"{storage_path_of(config)}/{BASE_SCORES}/{key}", config.run.storage_options))
        # The totals are written last.
        done = f"{EVALUATION}/{name}.json"
        if not session.broadcast(lambda: folder.storage.exists(done), f"looking for scores of {name}"):
            recognizer = self._recognizer()
            search = open_search(config, sets[VALIDATION], session, folder, recognizer)
            if name in sets:
                score_split(config, sets[name], session, folder, recognizer, name, search)
            else:
                score_sounds(name, config, session, folder, recognizer, search)
        return folder

    def _identity(self) -> Any:
        """Returns what identifies the content of the weights, and of the files that describe the model."""
        if self.weights is not None:
            return {name: entry["sha256"] for name, entry in self.weights.checkpoint.files.items()}
        pins = self.context.task.sources.values()
        return {pin.field: [pin.address, pin.revision, pin.sha256] for pin in pins}

    def _recognizer(self) -> Recognizer:
        if not self._opened:
            recognizer = open_initial(self.context, self.weights)
            recognizer.model.to(self.context.device)
            self._opened.append(recognizer)
        return self._opened[0]


def _determining(config: TrainConfig, name: str, sets: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the score of a split or guard depends on besides the weights."""
    return {
        "data": sets[name].key if name in sets else None,
        "chosen_on": sets[VALIDATION].key if config.decode.is_tuned else None,
        "bounds": config.data.model_dump(mode="json", include=_DATA_FIELDS),
        "model": config.model.model_dump(mode="json", include=_MODEL_FIELDS),
        "decode": config.decode.model_dump(mode="json"),
        "normalizer": str(normalizer_named(config.data.normalizer_name)),
        "metrics": dict(config.scoring.metrics),
        "autocast": str(autocast_dtype(config)),
        "packages": {name: version_of(name) for name in _PACKAGES},
    }


def _enter(context: WorkerContext, folders: Mapping[str, RunFolder]) -> None:
    """Copies scores to the run, and makes the journal name them; main process only."""
    writer = context.writer
    own = f"{ATTEMPTS}/{writer.attempt}/base-{writer.group.id}"
    target, scores = writer.folder.sub(own), dict[str, Any]()
    for split, folder in folders.items():
        for entry in folder.storage.list_files(EVALUATION):
            target.storage.write_bytes(entry.key, folder.storage.read_bytes(entry.key))
        scores[split] = folder.read_json(f"{EVALUATION}/{split}.json")
    writer.append(lambda _: {"kind": "base", "attempt": writer.attempt, "folder": own, "scores": scores})
