"""The config's evaluate part: what a run scores next to its own model. See `schema`."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from trainers.config.parts.gate import BUILT_IN_SETS, FULL_CONTEXT
from trainers.config.parts.part import Part, RowsLocation

# Names files of scores, and rates in conditions.
SetName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class EvaluatePart(Part):
    """Scores that the result of a run is compared with."""

    base: bool = Field(
        True,
        description="Score the weights that the run begins with on the validation and test sets before the first step. "
        "Runs in one run.storage_path with the same weights, data and decoding share these scores. No effect on new "
        "weights.",
    )
    also: dict[SetName, RowsLocation] = Field(
        {},
        description="Manifests of other speech, by a name for each: `{librispeech: other/librispeech.csv}`. They are "
        "scored before the training and after it, as the test set is, so that the result tells what the training cost "
        "elsewhere: in other domains, other languages, longer recordings.",
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

    @field_validator("also")
    @classmethod
    def _own_names(cls, also: dict[str, str]) -> dict[str, str]:
        for name in also:
            if name in BUILT_IN_SETS or name.endswith(FULL_CONTEXT):
                raise ValueError(f"{name} is the name of other scores: give the set another name")
        return also
