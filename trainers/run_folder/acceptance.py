"""Accepts a run's model by its comparison with the weights that the run began with. Imports no torch."""

from trainers.errors import RefusedError
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CONFIG, RunFolder


def why_not_accepted(folder: RunFolder) -> str | None:
    """Returns why the model of a run is not accepted; None if it is, or the run has no model.

    A model is not accepted if it is worse than the weights that the run began with, or not better although the recipe
    requires it.
    """
    finish = Journal(folder).read().finished
    if finish is None:
        return None
    verdicts = finish.result.get("verdicts") or {}
    verdict = verdicts.get("test", verdicts.get("validation"))
    judgment, rates = None, ""
    if verdict is not None:
        judgment = verdict["judgment"]
        rates = f" ({verdict['metric'].upper()} {verdict['base']:.2f}% → {verdict['tuned']:.2f}%)"
    if judgment == "worse":
        return f"{folder.url}: the training made the model worse{rates}"
    if judgment == "better" or not ((folder.read_yaml(CONFIG) or {}).get("evaluate") or {}).get("require_better"):
        return None
    return f"{folder.url}: the training did not make the model better{rates}, which evaluate.require_better requires"


def refuse_not_accepted(folder: RunFolder) -> None:
    """Raises RefusedError if the model of a run is not accepted."""
    if (problem := why_not_accepted(folder)) is not None:
        raise RefusedError(
            f"{problem}; train again with a lower training.learning_rate or fewer steps, or add --allow-worse to use "
            "this model"
        )
