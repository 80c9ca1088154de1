"""The config's checkpoint part: which checkpoints are kept. See `schema`."""

from typing import Literal

from pydantic import Field

from trainers.config.parts.part import Part, Positive

# float32.
BYTES_PER_NUMBER = 4
# Of a weight in a checkpoint that is trained: itself and AdamW's two moments.
BYTES_PER_WEIGHT = 3 * BYTES_PER_NUMBER


class CheckpointPart(Part):
    """Which checkpoints are kept, over all attempts of a run."""

    num_to_keep: Positive | None = Field(3, description="Keep this many of the best, and the newest. null: keep all.")
    checkpoint_score_attribute: str | None = Field(
        None,
        description="The score on the validation set that ranks checkpoints: `eval_<name>` of a metric that is "
        "always scored (eval_wer, eval_cer, eval_ser), or of scoring.metrics. A loss does not rank recognizers. null: "
        "eval_cer for a language that is written without spaces between words (model.language), else eval_wer.",
    )
    checkpoint_score_order: Literal["min", "max"] = Field(
        "min",
        description="Which score is better. min: the smaller, as of error rates. max: the larger.",
    )

    @property
    def score_attribute(self) -> str:
        """The attribute, of a config whose run has begun."""
        assert self.checkpoint_score_attribute is not None, "the run's beginning gives it a value"
        return self.checkpoint_score_attribute
