"""Chooses the weights that a run exports: a checkpoint, an average of checkpoints, or an interpolation with the base.

Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (WiSE-FT): weights between the base and the tuned ones
keep most of what was gained in the new domain, and more of what the model knew before.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from trainers.config.parts.conditions import VALIDATION
from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.errors import RefusedError
from trainers.models.adaptation.lora import ADAPTER, merge_once_a_node, scale_adapter
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Recognizer
from trainers.models.weights import Weights, weighted_mean
from trainers.run_folder.checkpoints import REFUSED
from trainers.run_folder.resume import fetch_ranked
from trainers.scoring.report.model_card import BEST_CHECKPOINT
from trainers.scoring.scorer import SplitScore
from trainers.training.base.gate import Gate
from trainers.training.base.initial_model import open_initial
from trainers.training.callbacks import validation_metrics, write_validation
from trainers.training.validation_scores import validation_scorer
from trainers.training.worker_context import ResumePoint, WorkerContext

# Files of weights in a model's folder, which are written anew.
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class Candidate:
    """Weights that are scored.

    Attributes:
        of: What the weights are of: BEST_CHECKPOINT, or an average.
        share: Its share in the weights; the rest is the base's.
    """

    of: str
    share: float

    def __str__(self) -> str:
        return self.of if self.share == 1 else f"{self.share:g} of {self.of} and {1 - self.share:g} of the base"


@dataclass(frozen=True)
class ChosenWeights:
    """The weights that were chosen.

    Attributes:
        folder: Folder on this node with the files of a checkpoint's model.
        metrics: Metrics on the validation set.
        ranks: The metric that ranks candidates.
        scores: Metrics of each candidate.
    """

    folder: Path
    candidate: Candidate
    ranks: str
    metrics: Mapping[str, float]
    scores: Mapping[Candidate, Mapping[str, float]]

    def to_json_dict(self) -> dict[str, Any]:
        def described(candidate: Candidate) -> dict[str, Any]:
            return {"of": candidate.of, "share": candidate.share, "name": str(candidate)}

        candidates = [described(each) | {**metrics} for each, metrics in self.scores.items()]
        return {**described(self.candidate), "ranks": self.ranks, "candidates": candidates}


def choose_weights(
    context: WorkerContext, weights: ResumePoint | None, best: Path, shares: Sequence[float], gate: Gate
) -> ChosenWeights:
    """Scores each candidate on the validation set, and writes the model with the best score. Every rank calls this.

    Weights are computed on every rank alike, so they do not depend on the number of ranks.

    Args:
        context: The rank's context.
        weights: The weights that the run begins with, if they are a checkpoint's; else they are the model's own.
        best: Folder of the best checkpoint's model.
        shares: Shares of the tuned weights in interpolations; empty for none.
        gate: Refuses candidates.

    Raises:
        RefusedError: checkpoint.refuse_if refuses all of them.
    """
    config, session = context.config, context.session
    # In the dtype in which the exported model is scored.
    recognizer = family_of_folder(best).open_exported(best, config.model.dtype)
    tuned = {BEST_CHECKPOINT: _stored(context, "best", recognizer.model.state_dict)} | dict(_averages(context))
    base = _stored(context, "base", open_initial(context, weights).model.state_dict) if shares else None
    recognizer.model.to(context.device)
    full_context = bool(shares) or config.training.full_context_eval
    scorer, options = validation_scorer(context, recognizer, full_context=full_context)
    scores: dict[Candidate, SplitScore] = {}
    for candidate in [Candidate(of, share) for of in tuned for share in sorted({*shares, 1.0})]:
        set_weights(recognizer, base, tuned[candidate.of], candidate.share)
        score = scorer.score(options, f"score {VALIDATION} with {candidate}")
        scores[candidate] = gate.judged(score, recognizer, str(candidate))
    found = {candidate: validation_metrics(score) for candidate, score in scores.items()}
    ranks = _ranking(config, found)
    for candidate, each in found.items():
        session.show_from_main(f"weights: {candidate}: {ranks.removeprefix('eval_')} {each[ranks]:.2f}")
    chosen = best_candidate(config, found)
    if chosen is None:
        raise RefusedError(
            f"{context.folder.url}: checkpoint.refuse_if refuses all {len(found)} candidates of checkpoint.interpolate "
            "and checkpoint.average"
        )
    set_weights(recognizer, base, tuned[chosen.of], chosen.share)
    folder = best.with_name(f"{best.name}-chosen")
    with session.failing_together("writing the chosen weights"):
        if session.local_rank == 0:
            _write(recognizer, best, folder, chosen)
            write_validation(folder, scores[chosen])
    session.show_from_main(f"weights: {chosen}, the best of {counted(len(found), 'candidate')}")
    return ChosenWeights(folder, chosen, ranks, found[chosen], found)


def _stored(context: WorkerContext, name: str, weights: Callable[[], Weights]) -> Path:
    """Writes weights into a file of this node, which its ranks map into memory; returns its path."""
    path = context.staging.folder / f"weights-{name}.safetensors"
    with context.session.failing_together(f"writing the weights of {name}"):
        if context.session.local_rank == 0:
            # Cloned, since safetensors refuses tied weights, which share their memory.
            save_file({each: weight.cpu().clone().contiguous() for each, weight in weights().items()}, path)
    return path


def _averages(context: WorkerContext) -> Iterator[tuple[str, Path]]:
    """Yields name and file of the average of the best checkpoints, if the config has one and more than one is kept."""
    count = context.config.checkpoint.average
    if count is None:
        return
    fetched = fetch_ranked(context.staging, context.writer, context.retention, context.session, count)
    folders = [merge_once_a_node(local, context.session) for _, local in fetched]
    if len(folders) < 2:
        context.session.show_from_main("weights: only one checkpoint may be the best, so there is no average")
        return
    name = f"the average of {len(folders)} checkpoints"
    yield name, _stored(context, "average", lambda: _mean(folders))


def _mean(folders: Sequence[Path]) -> Weights:
    """Returns the mean of the weights of models."""
    states = (family_of_folder(each).open_exported(each).model.state_dict() for each in folders)
    return weighted_mean(states, [1 / len(folders)] * len(folders))


def set_weights(recognizer: Recognizer, base: Path | None, tuned: Path, share: float) -> None:
    """Sets each weight to its interpolation between two files; a share of 1 gives `tuned` bit for bit.

    Computed in float32. Integers, such as counters of batch norms, are those of `tuned`. `base` may be None if the
    share is 1.
    """
    state = recognizer.model.state_dict()
    with torch.no_grad(), safe_open(tuned, "pt") as ends, safe_open(base or tuned, "pt") as begins:
        for name in ends.keys():  # noqa: SIM118 -- not a mapping
            weight = ends.get_tensor(name)
            if share != 1 and weight.is_floating_point():
                weight = torch.lerp(begins.get_tensor(name).float(), weight.float(), share)
            state[name].copy_(weight)


def best_candidate(config: TrainConfig, metrics: Mapping[Candidate, Mapping[str, float]]) -> Candidate | None:
    """Returns the candidate with the best ranking score, of equal ones that with the largest share, then the first.

    Interpolations are ranked at the model's full context, since the initial weights recognize next to nothing at a
    shorter one. Returns None if all are refused.
    """
    part, ranks = config.checkpoint, _ranking(config, metrics)
    sign = -1 if part.checkpoint_score_order == "max" else 1
    passed: Sequence[Candidate] = [each for each, found in metrics.items() if not found.get(REFUSED)]
    return min(passed, key=lambda each: (sign * metrics[each][ranks], -each.share), default=None)


def _ranking(config: TrainConfig, metrics: Mapping[Candidate, Mapping[str, float]]) -> str:
    ranks = config.checkpoint.score_attribute
    at_full = f"eval_full_context_{ranks.removeprefix('eval_')}"
    is_at_full = config.checkpoint.interpolate and all(at_full in found for found in metrics.values())
    return at_full if is_at_full else ranks


def _write(recognizer: Recognizer, best: Path, folder: Path, chosen: Candidate) -> None:
    shutil.copytree(best, folder, ignore=shutil.ignore_patterns(*WEIGHT_FILES), dirs_exist_ok=True)
    recognizer.model.to("cpu").save_pretrained(folder)
    if not (best / ADAPTER).is_dir():
        return
    if chosen.of == BEST_CHECKPOINT:
        scale_adapter(best / ADAPTER, folder / ADAPTER, chosen.share, recognizer.model.state_dict())
    else:
        # The average of merged adapters has a higher rank than each of them.
        shutil.rmtree(folder / ADAPTER)
