"""The config's evaluate part: what a run scores next to its own model. See `schema`."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from trainers.config.parts.conditions import BUILT_IN_SETS, FULL_CONTEXT
from trainers.config.parts.part import Part, RowsLocation

# Names files of scores, and rates in conditions.
SetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class EvaluatePart(Part):
    """Scores that the result of a run is compared with."""

    base: bool = Field(
        True,
        description="Score the weights that the run begins with, before the first step, on every set that its model is "
        "scored on. Runs with the same run.storage_path, weights, data and decoding share these scores. A run with new "
        "weights has none.",
    )
    also: dict[SetName, RowsLocation] = Field(
        {},
        description="Manifests of other speech, such as other domains or languages, by a name for each: `{librispeech: "
        "other/librispeech.csv}`. They have the recipe's columns, and are scored before and after the training, at the "
        "model's own context, to show what the training cost elsewhere.",
    )
    require_better: bool = Field(
        False,
        description="Fail the run (exit code 17) unless its model is significantly better than the weights that it "
        "began with, by the matched-pairs test. Uses the test set, or the validation set if there is none.",
    )
    guard: Literal["default"] | None = Field(
        None,
        description="default: count the words that the model writes for sounds without speech, before and after the "
        "training, in two sets: silence, and noise with synthetic music. This takes as long as scoring 17 minutes of "
        "speech. null: no such sets.",
    )

    @field_validator("also")
    @classmethod
    def _own_names(cls, also: dict[str, str]) -> dict[str, str]:
        for name in also:
            if name in BUILT_IN_SETS or f"_{name}".endswith(FULL_CONTEXT):
                raise ValueError(f"{name} is the name of other scores: give the set another name")
        return also
