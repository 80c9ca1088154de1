"""The config's evaluate part: what a run scores next to its own model. See `schema`."""

from typing import Literal

from pydantic import Field

from trainers.config.parts.part import Part


class EvaluatePart(Part):
    """Scores that the result of a run is compared with."""

    base: bool = Field(
        True,
        description="Score the weights that the run begins with on the validation and test sets before the first step. "
        "Runs in one run.storage_path with the same weights, data and decoding share these scores. No effect on new "
        "weights.",
    )
    require_better: bool = Field(
        False,
        description="Fail a run, with exit code 17, whose model is not better than the weights that it begins with: by "
        "the matched-pairs test, on the test set or, without one, on the validation set.",
    )
    guard: Literal["default"] | None = Field(
        None,
        description="default: also count the words that the model writes for two sets of sounds without speech, "
        "silence and noise (with synthetic music), before the training and after it. Takes as long as scoring 17 "
        "minutes of speech. null: no such sets.",
    )
