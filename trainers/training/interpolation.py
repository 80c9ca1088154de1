"""Interpolates between the weights that a run begins with and its best checkpoint; the validation set chooses.

Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (WiSE-FT): such weights keep most of what was gained in
the new domain, and more of what the model knew before.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainers.config.schema import TrainConfig
from trainers.errors import RefusedError
from trainers.models.adaptation.lora import ADAPTER, scale_adapter
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Recognizer
from trainers.run_folder.checkpoints import REFUSED
from trainers.scoring.recipe_metrics import RecipeMetrics
from trainers.scoring.scorer import Scorer, SplitScore
from trainers.training.callbacks import VALIDATION, validation_metrics, write_validation
from trainers.training.gate import Gate
from trainers.training.initial_model import open_initial
from trainers.training.planning import cache_bytes, scored_clips, validation_options
from trainers.training.worker_context import ResumePoint, WorkerContext

# Files of weights in a model's folder, which are written anew.
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
Ends = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Interpolated:
    """A model between the base and the best checkpoint.

    Attributes:
        folder: Its folder on this node, with the files of a checkpoint's model.
        share: Share of the best checkpoint in its weights; the rest is the base's.
        metrics: Its metrics on the validation set.
        candidates: Share and metrics of each model that was scored.
    """

    folder: Path
    share: float
    metrics: Mapping[str, float]
    candidates: Sequence[Mapping[str, float]]

    def to_json_dict(self) -> dict[str, Any]:
        return {"share": self.share, "candidates": self.candidates}


def interpolate(context: WorkerContext, weights: ResumePoint | None, best: Path, gate: Gate) -> Interpolated:
    """Scores a model for each share of checkpoint.interpolate, and writes the best one. Every rank calls this.

    The weights are computed in float32 on every rank, so they do not depend on the number of ranks.

    Raises:
        RefusedError: checkpoint.refuse_if refuses all of them.
    """
    config, session = context.config, context.session
    base = open_initial(context, weights).model.state_dict()
    tuned = family_of_folder(best).open_exported(best)
    ends = {name: (base[name], weight.clone()) for name, weight in tuned.model.state_dict().items()}
    tuned.model.to(context.device)
    clips = scored_clips(config, context.task.sets[VALIDATION], tuned, VALIDATION)
    metrics = RecipeMetrics(config.scoring.metrics)
    scorer = Scorer(clips, tuned, session, cache_bytes=cache_bytes(config), metrics=metrics)
    options = validation_options(config, tuned.limits)
    scores: dict[float, SplitScore] = {}
    for share in config.checkpoint.interpolate:
        set_weights(tuned, ends, share)
        what = f"{share:g} of the best checkpoint"
        scores[share] = gate.judged(scorer.score(options, f"score {VALIDATION} with {what}"), tuned, what)
    found = {share: validation_metrics(score) for share, score in scores.items()}
    chosen = best_share(config, found)
    if chosen is None:
        raise RefusedError(
            f"{context.folder.url}: checkpoint.refuse_if refuses the weights of every share of checkpoint.interpolate"
        )
    set_weights(tuned, ends, chosen)
    folder = best.with_name(f"{best.name}-interpolated")
    if session.local_rank == 0:
        shutil.copytree(best, folder, ignore=shutil.ignore_patterns(*_WEIGHTS), dirs_exist_ok=True)
        tuned.model.to("cpu").save_pretrained(folder)
        if (best / ADAPTER).is_dir():
            scale_adapter(best / ADAPTER, folder / ADAPTER, chosen, tuned.model.state_dict())
        write_validation(folder, scores[chosen])
    session.barrier("writing the interpolated weights")
    session.show_from_main(f"interpolate: {chosen:g} of the best checkpoint, {1 - chosen:g} of the base")
    return Interpolated(folder, chosen, found[chosen], [{"share": each, **found[each]} for each in found])


def set_weights(recognizer: Recognizer, ends: Ends, share: float) -> None:
    """Sets each weight to its interpolation; 1 gives the second of `ends` bit for bit, 0 the first.

    Integers, such as counters of batch norms, are the second's.
    """
    state = recognizer.model.state_dict()
    with torch.no_grad():
        for name, (base, tuned) in ends.items():
            weight = torch.lerp(base.float(), tuned.float(), share) if tuned.is_floating_point() else tuned
            state[name].copy_(weight)


def best_share(config: TrainConfig, metrics: Mapping[float, Mapping[str, float]]) -> float | None:
    """Returns the share with the best ranking score, of equal ones the largest; None if all are refused."""
    part = config.checkpoint
    sign = -1 if part.checkpoint_score_order == "max" else 1
    passed = [share for share, found in metrics.items() if not found.get(REFUSED)]
    return min(passed, key=lambda share: (sign * metrics[share][part.score_attribute], -share), default=None)
