"""The config's augment part: how training clips are changed. See `schema`."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from trainers.config.parts.part import Location, NotNegative, Part, PositiveFloat, idle_fields, rule

SLOWEST, FASTEST = 0.5, 2.0
# For each field, those that have no effect unless it is set.
_FIELDS_OF = {
    "noise_manifest": ("noise_snr_db", "noise_probability"),
    "rir_manifest": ("rir_probability",),
    "time_masks": ("time_mask_s", "time_mask_fraction"),
    "frequency_masks": ("frequency_mask_fraction",),
}


def _ascending(pair: list[float]) -> list[float]:
    low, high = pair
    if low > high:
        raise ValueError(f"{low:g} is more than {high:g}: write the lower one first")
    return pair


Range = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_ascending)]
SpeedFactor = Annotated[float, Field(ge=SLOWEST, le=FASTEST)]
SpeedRange = Annotated[list[SpeedFactor], Field(min_length=2, max_length=2), AfterValidator(_ascending)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class AugmentPart(Part):
    """Random changes of the training clips, drawn anew in each epoch. Off by default; never applied when scoring."""

    speed_factors: list[SpeedFactor] = Field(
        [],
        description="Speed perturbation: each clip gets one of these factors at random, which also changes its pitch. "
        "0.9 makes it slower and longer, but never longer than the model takes. []: none, or speed_range.",
    )
    speed_range: SpeedRange | None = Field(
        None, description="Speed perturbation by a random factor from this range, [slowest, fastest]. null: none."
    )
    gain_db: Range | None = Field(None, description="Random gain from this range. dB. null: none.")
    noise_manifest: Location | None = Field(
        None,
        description="Manifest (CSV, TSV, JSONL) of recordings that are added as noise: a path or URL that every node "
        "can read. Its column of recordings is data.audio_column_name. null: no noise.",
    )
    noise_snr_db: Range = Field([5.0, 20.0], description="Signal-to-noise ratio: a random value from this range. dB.")
    noise_probability: Probability = Field(0.5, description="Fraction of clips to which noise is added.")
    rir_manifest: Location | None = Field(
        None,
        description="Manifest, like noise_manifest, of room impulse responses to convolve clips with. null: none.",
    )
    rir_probability: Probability = Field(0.5, description="Fraction of clips that are convolved.")
    no_speech_fraction: Probability = Field(
        0.0,
        description="Fraction of clips that are replaced by silence, noise or synthetic music of the same length, with "
        "an empty text, so that the model learns to write nothing for them. Not for CTC models.",
    )
    time_masks: NotNegative = Field(0, description="SpecAugment: number of time masks in each clip.")
    time_mask_s: PositiveFloat = Field(0.4, description="SpecAugment: longest time mask. Seconds.")
    time_mask_fraction: Fraction = Field(
        0.2, description="SpecAugment: longest time mask, as a fraction of the clip. Both limits apply."
    )
    frequency_masks: NotNegative = Field(0, description="SpecAugment: number of masked bands of mel bins in each clip.")
    frequency_mask_fraction: Fraction = Field(
        0.3, description="SpecAugment: the widest masked band, as a fraction of the mel bins."
    )

    @rule
    def _fields_fit(self) -> Iterator[str]:
        if self.speed_factors and self.speed_range is not None:
            yield "speed_factors and speed_range both set the speed: set speed_factors: [], or speed_range: null"
        for switch, fields in _FIELDS_OF.items():
            if not getattr(self, switch):
                yield from idle_fields(self, fields, f"{switch} is {getattr(self, switch)}", f"set {switch}")

    @property
    def slowest(self) -> float:
        """The smallest speed factor that a clip may get; 1 if speed is not changed."""
        return min(self._speeds)

    @property
    def fastest(self) -> float:
        """The largest speed factor that a clip may get; at least 1, since not every clip can be slowed down."""
        return max(1.0, *self._speeds)

    @property
    def changes_speed(self) -> bool:
        return self._speeds != [1.0]

    @property
    def masks(self) -> bool:
        return bool(self.time_masks or self.frequency_masks)

    @property
    def is_on(self) -> bool:
        return (
            self.changes_speed
            or self.masks
            or self.no_speech_fraction > 0
            or any(field is not None for field in (self.gain_db, self.noise_manifest, self.rir_manifest))
        )

    @property
    def _speeds(self) -> list[float]:
        return self.speed_range or self.speed_factors or [1.0]
