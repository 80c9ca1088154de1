"""What is chosen for speech and a machine."""

from typing import Any

import pytest

from jobs.recipes.found_machine import Gpu, Machine
from jobs.recipes.recipe_choices import Choices, GivenModel, Speech, choose, clip_limits

GIB = 2**30
LAPTOP = Machine(8, 16 * GIB)


def speech(**changes: Any) -> Speech:
    known: dict[str, Any] = {"train_clips": 1000, "train_hours": 1.5, "usual_s": 5.2, "longest_s": 6.1}
    return Speech(**{**known, "longest_text": 90, "language": "Serbian", **changes})


def gpus(count: int, memory_gib: int, *, cpus: int = 32, has_bfloat16: bool = True) -> Machine:
    return Machine(cpus, 256 * GIB, (Gpu("a GPU", memory_gib * GIB, has_bfloat16),) * count)


def choice(found: Choices, name: str) -> Any:
    part, _, field = name.partition(".")
    return getattr(found, part).get(field)


@pytest.mark.parametrize(
    ("memory_gib", "hours", "model"),
    [
        (2, 20, "tiny"),
        (4, 20, "base"),
        (6, 20, "base"),
        (8, 20, "small"),
        (12, 20, "small"),
        (24, 20, "medium"),
        (48, 20, "large-v3"),
        (80, 20, "large-v3"),
        # Little speech.
        (24, 0.5, "small"),
        (80, 0.5, "small"),
        (6, 0.5, "base"),
    ],
)
def test_the_largest_whisper_that_a_gpu_has_room_for(memory_gib: int, hours: float, model: str) -> None:
    found = choose(speech(train_hours=hours), gpus(1, memory_gib), None)
    assert choice(found, "model.name_or_path") == f"openai/whisper-{model}"
    assert "model/name_or_path" in found.comments


def test_the_smallest_gpu_counts() -> None:
    mixed = Machine(32, 64 * GIB, (Gpu("large", 80 * GIB, True), Gpu("small", 6 * GIB, True)))
    assert choice(choose(speech(), mixed, None), "model.name_or_path") == "openai/whisper-base"


@pytest.mark.parametrize(
    ("machine", "scaling"),
    [
        (Machine(1, GIB), {"num_workers": 1, "use_gpu": False, "resources_per_worker": {"CPU": 1}}),
        (Machine(2, GIB), {"num_workers": 1, "use_gpu": False, "resources_per_worker": {"CPU": 2}}),
        (LAPTOP, {"num_workers": 1, "use_gpu": False, "resources_per_worker": {"CPU": 7}}),
        (Machine(64, GIB), {"num_workers": 1, "use_gpu": False, "resources_per_worker": {"CPU": 16}}),
        (gpus(1, 24, cpus=4), {"num_workers": 1, "use_gpu": True, "resources_per_worker": {"CPU": 3, "GPU": 1}}),
        (gpus(8, 80, cpus=96), {"num_workers": 8, "use_gpu": True, "resources_per_worker": {"CPU": 8, "GPU": 1}}),
        (gpus(4, 24, cpus=4), {"num_workers": 4, "use_gpu": True, "resources_per_worker": {"CPU": 1, "GPU": 1}}),
    ],
)
def test_a_worker_for_each_gpu_or_one_on_cpus(machine: Machine, scaling: dict[str, Any]) -> None:
    assert choose(speech(), machine, None).scaling == scaling


@pytest.mark.parametrize(
    ("usual_s", "longest_s", "machine", "context_s", "skips"),
    [
        (5.2, 6.1, LAPTOP, 7, False),
        (5.2, 12.0, LAPTOP, 6, True),
        (0.3, 0.4, LAPTOP, 1, False),
        (19.5, 20.0, LAPTOP, 20, False),
        (21.0, 29.0, LAPTOP, None, False),
        (33.0, 40.0, LAPTOP, None, True),
        (12.0, 12.0, gpus(1, 24), 12, False),
        (16.0, 17.0, gpus(1, 24), None, False),
        (None, None, LAPTOP, None, True),
    ],
)
def test_the_context_is_that_of_nearly_all_clips_where_it_saves_much(
    usual_s: float | None, longest_s: float | None, machine: Machine, context_s: int | None, skips: bool
) -> None:
    found = choose(speech(usual_s=usual_s, longest_s=longest_s), machine, None)
    assert choice(found, "model.max_context_s") == context_s
    assert choice(found, "data.max_duration_s") == (context_s or 30)
    assert choice(found, "data.too_long_eval") == ("skip" if skips else None)
    assert choice(found, "training.full_context_eval") == (None if context_s is None else False)
    assert choice(found, "model.full_context_matching") == (0.1 if machine.gpus and context_s else None)


@pytest.mark.parametrize(
    ("clips", "hours", "machine", "steps", "every"),
    [
        (24, 0.02, LAPTOP, 40, 10),
        (200, 0.5, LAPTOP, 140, 20),
        (2400, 3, LAPTOP, 300, 60),
        (24, 0.02, gpus(1, 24), 40, 10),
        (7000, 9, gpus(1, 24), 2200, 440),
        (70_000, 100, gpus(4, 80), 7000, 1000),
        (1_000_000, 1500, gpus(8, 80), 20_000, 1000),
    ],
)
def test_steps_are_passes_over_the_data_within_bounds(
    clips: int, hours: float, machine: Machine, steps: int, every: int
) -> None:
    found = choose(speech(train_clips=clips, train_hours=hours), machine, None)
    assert (choice(found, "training.max_steps"), choice(found, "training.eval_steps")) == (steps, every)
    assert steps % every == 0
    assert choice(found, "training.save_steps") == every


@pytest.mark.parametrize(
    ("machine", "given", "batch", "per_device"),
    [
        (LAPTOP, None, 8, 8),
        (Machine(2, 4 * GIB), None, 8, 4),
        (gpus(1, 80), None, 16, 16),
        (gpus(1, 24), GivenModel("openai/whisper-medium", 769e6), 16, 8),
        (gpus(32, 24), None, 32, 1),
        (LAPTOP, GivenModel("scratch", 39e6), 16, 4),
        (Machine(2, 4 * GIB), GivenModel("scratch", 39e6), 16, 8),
    ],
)
def test_a_step_has_the_same_clips_whatever_fits_at_once(
    machine: Machine, given: GivenModel | None, batch: int, per_device: int
) -> None:
    found = choose(speech(), machine, given)
    assert choice(found, "training.global_batch_size") == batch
    assert choice(found, "training.per_device_train_batch_size") == per_device


@pytest.mark.parametrize(("cpus", "workers"), [(1, 1), (2, 2), (4, 3), (8, 4), (64, 4)])
def test_a_new_model_has_workers_of_one_cpu_each(cpus: int, workers: int) -> None:
    found = choose(speech(), Machine(cpus, 16 * GIB), GivenModel("scratch", 39e6))
    assert choice(found, "scaling.num_workers") == workers
    assert choice(found, "scaling.resources_per_worker") == {"CPU": 1}


@pytest.mark.parametrize(("has_bfloat16", "precision"), [(True, "bf16"), (False, "fp16")])
def test_an_older_gpu_takes_the_other_16_bits(has_bfloat16: bool, precision: str) -> None:
    training = choose(speech(), gpus(1, 16, has_bfloat16=has_bfloat16), None).training
    assert {name for name in ("bf16", "fp16") if name in training} == {precision}


def test_a_large_model_learns_more_slowly_and_a_new_one_much_faster() -> None:
    sizes = [("scratch", 39e6), ("me/whisper-tiny-sr", 39e6), ("/weights", 200e6), ("openai/whisper-large-v2", 1550e6)]
    rates = [choice(choose(speech(), LAPTOP, GivenModel(*size)), "training.learning_rate") for size in sizes]
    assert rates == [1e-3, 1e-5, 1e-5, 5e-6]


def test_a_new_model_has_more_passes_over_little_speech() -> None:
    found = choose(speech(train_clips=3200, train_hours=0.9), LAPTOP, GivenModel("scratch", 39e6))
    assert choice(found, "training.max_steps") == 2000


def test_a_new_model_has_sizes_and_no_weights() -> None:
    found = choose(speech(longest_text=40), LAPTOP, GivenModel("scratch", 39e6))
    assert found.model["init"] == "scratch"
    assert "name_or_path" not in found.model
    assert found.model["max_label_tokens"] == 56


def test_hypotheses_are_about_as_long_as_transcripts() -> None:
    lengths = [choice(choose(speech(longest_text=size), LAPTOP, None), "decode.max_length") for size in (1, 90, 999)]
    assert lengths == [17, 106, 225]


def test_a_machine_without_a_gpu_takes_as_many_clips_as_it_trains_on_in_minutes() -> None:
    assert clip_limits(LAPTOP, None) == {"train": 2400, "validation": 100, "test": 100}
    assert clip_limits(LAPTOP, GivenModel("scratch", 39e6))["train"] is None
    assert clip_limits(gpus(1, 8), None) == {"train": None, "validation": 1000, "test": None}
