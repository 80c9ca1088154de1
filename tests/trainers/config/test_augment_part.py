"""What of `augment:` is refused, and what it says of speeds."""

import pytest

from tests.trainers.synthetic import config
from trainers.config.parts.augment_part import AugmentPart
from trainers.errors import ConfigError


def test_nothing_is_on_by_default() -> None:
    part = config().augment
    assert not part.is_on and not part.changes_speed and not part.masks
    assert (part.slowest, part.fastest) == (1.0, 1.0)


@pytest.mark.parametrize(
    "field",
    [
        {"speed_factors": [0.9]},
        {"speed_range": [0.9, 1.1]},
        {"gain_db": [-3, 3]},
        {"noise_manifest": "/noise.csv"},
        {"rir_manifest": "/rirs.csv"},
        {"time_masks": 1},
        {"frequency_masks": 1},
    ],
)
def test_each_of_these_switches_something_on(field: dict[str, object]) -> None:
    assert AugmentPart.model_validate(field).is_on


@pytest.mark.parametrize("part", [AugmentPart(speed_factors=[1.0, 0.8, 1.1]), AugmentPart(speed_range=[0.8, 1.1])])
def test_the_slowest_and_the_fastest_speed(part: AugmentPart) -> None:
    assert (part.slowest, part.fastest) == (0.8, 1.1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"augment.noise_snr_db": [20, 5]}, "augment.noise_snr_db: 20 is more than 5: write the lower one first"),
        ({"augment.gain_db": [3, -3]}, "augment.gain_db: 3 is more than -3"),
        ({"augment.speed_range": [1.1, 0.9]}, "augment.speed_range: 1.1 is more than 0.9"),
        ({"augment.speed_range": [0.9]}, "augment.speed_range"),
        ({"augment.speed_factors": [0.1]}, "augment.speed_factors"),
        ({"augment.speed_range": [0.9, 1.1], "augment.speed_factors": [1.1]}, "set speed_factors: \\[\\]"),
        ({"augment.noise_probability": 1.5}, "augment.noise_probability"),
        ({"augment.noise_manifest": "hdfs://bucket/noise.csv"}, "augment.noise_manifest: hdfs:// is not supported"),
        ({"augment.noise_snr_db": [0, 10]}, "noise_snr_db is \\[0.0, 10.0\\], but noise_manifest is None"),
        ({"augment.noise_probability": 1}, "noise_probability is 1.0, but noise_manifest is None: set noise_manifest"),
        ({"augment.rir_probability": 0.7}, "rir_probability is 0.7, but rir_manifest is None"),
        ({"augment.time_mask_s": 0.2}, "time_mask_s is 0.2, but time_masks is 0: set time_masks, or leave time_mask_s"),
        ({"augment.time_mask_fraction": 0.1}, "time_mask_fraction is 0.1, but time_masks is 0"),
        ({"augment.frequency_mask_fraction": 0.1}, "frequency_mask_fraction is 0.1, but frequency_masks is 0"),
        ({"augment.time_masks": 1, "model.apply_spec_augment": True}, "model.apply_spec_augment: false"),
        ({"augment.frequency_masks": 1, "model.apply_spec_augment": True}, "model.apply_spec_augment: false"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(changes)


def test_the_model_s_own_masking_goes_with_everything_but_ours() -> None:
    assert config({"model.apply_spec_augment": True, "augment.speed_factors": [0.9, 1.1]}).model.masks_features


def test_a_default_that_is_written_out_is_fine() -> None:
    written = {f"augment.{name}": value for name, value in AugmentPart().model_dump().items()}
    assert config(written).augment == AugmentPart()
