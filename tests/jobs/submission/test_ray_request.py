from typing import Any

import pytest

from jobs.model import Progress
from jobs.submission.ray_request import checkpoint_bytes_of, size_of, stop_grace_s


def config(grace_s: int | None = None, **model: Any) -> dict[str, Any]:
    others = {"adapt": {"method": "full"}, "strategy": {"name": "ddp"}}
    return {**others, "model": {**SCRATCH, **model}, "job": {"stop_grace_s": grace_s}}


SCRATCH = {
    **{"init": "scratch", "name_or_path": None, "d_model": 128, "ffn_dim": None, "encoder_layers": 2},
    **{"decoder_layers": 1, "vocab_size": 1000},
}
LARGE: dict[str, Any] = {"init": "pretrained", "name_or_path": "openai/whisper-large-v3"}


def test_what_the_config_says_counts() -> None:
    assert stop_grace_s(config(7, **LARGE), Progress(phase="TRAINING", checkpoint_s=999.0)) == 7


def test_a_small_model_has_two_minutes() -> None:
    assert stop_grace_s(config(), None) == 120


def test_a_large_model_has_the_time_that_three_of_its_checkpoints_take() -> None:
    assert stop_grace_s(config(**LARGE), None) == round(3 * 1550e6 * 12 / 50e6)


def test_an_adapter_s_checkpoints_are_small() -> None:
    lora = {"method": "lora", "r": 16}
    assert stop_grace_s({**config(**LARGE), "adapt": lora}, None) == 120
    assert stop_grace_s({**config(**LARGE), "adapt": {**lora, "r": 10_000}}, None) == stop_grace_s(
        config(**LARGE), None
    )
    # 384 layers of width 1280, as peft counts them.
    assert checkpoint_bytes_of({**config(**LARGE), "adapt": lora}) > 384 * 2 * 16 * 1280 * 12
    assert stop_grace_s({**config(**LARGE), "adapt": {"method": "freeze_encoder", "r": 16}}, None) == 1116


def test_shards_hold_the_weights_twice_more() -> None:
    sharded = {**config(**LARGE), "strategy": {"name": "deepspeed"}}
    assert stop_grace_s(sharded, None) == round(3 * 1550e6 * 20 / 50e6)
    assert stop_grace_s({**sharded, "strategy": {"name": "ddp"}}, None) == 1116


@pytest.mark.parametrize(("checkpoint_s", "grace_s"), [(None, 1116), (100.0, 300), (1.0, 120), (5000.0, 3600)])
def test_the_next_attempt_goes_by_what_was_measured(checkpoint_s: float | None, grace_s: int) -> None:
    assert stop_grace_s(config(**LARGE), Progress(phase="TRAINING", checkpoint_s=checkpoint_s)) == grace_s


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("openai/whisper-tiny", 39e6),
        ("openai/whisper-small.en", 244e6),
        ("/models/whisper-large-v3-turbo/", 809e6),
        ("me/my-serbian", 0.0),
        ("openai/whisper-huge", 0.0),
    ],
)
def test_released_models_are_known_by_name(name: str, weights: float) -> None:
    assert size_of({"init": "pretrained", "name_or_path": name}).weights == weights


def test_a_new_model_s_weights_are_about_those_of_its_sizes() -> None:
    # 0.7 million, as transformers counts them, positions and norms included.
    assert size_of(SCRATCH).weights == pytest.approx(0.7e6, rel=0.15)
