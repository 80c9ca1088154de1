"""What workers have: accelerators, their types, and the nodes that labels select."""

from typing import Any

import pytest

from tests.trainers.config import advice
from tests.trainers.synthetic import config, content
from trainers.config.loader import build_config
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError


def refused(scaling: dict[str, Any]) -> str:
    return advice.refused({"trainer": "script", "script": {"command": ["train.py"]}, "scaling": scaling})


@pytest.mark.parametrize(
    ("scaling", "use_gpu", "device", "resources"),
    [
        ({}, False, "cpu", {"CPU": 1}),
        ({"use_gpu": True}, True, "auto", {"CPU": 1, "GPU": 1}),
        ({"accelerator": "auto"}, True, "auto", {"CPU": 1, "GPU": 1}),
        ({"accelerator": "cuda", "use_gpu": True}, True, "cuda", {"CPU": 1, "GPU": 1}),
        ({"accelerator": "rocm", "resources_per_worker": {"GPU": 2}}, True, "rocm", {"CPU": 1, "GPU": 2}),
        ({"accelerator": "cpu"}, False, "cpu", {"CPU": 1}),
        ({"accelerator": "hpu"}, False, "hpu", {"CPU": 1, "HPU": 1}),
        ({"accelerator": "hpu", "resources_per_worker": {"HPU": 8}}, False, "hpu", {"CPU": 1, "HPU": 8}),
        ({"resources_per_worker": {"HPU": 1}}, False, "hpu", {"CPU": 1, "HPU": 1}),
        (
            {"use_gpu": True, "accelerator_type": "A100"},
            True,
            "auto",
            {"CPU": 1, "GPU": 1, "accelerator_type:A100": 0.001},
        ),
    ],
)
def test_an_accelerator_is_one_of_ray_s_resources(
    scaling: dict[str, Any], *, use_gpu: bool, device: str, resources: dict[str, float]
) -> None:
    part = ScalingPart.model_validate(scaling)
    assert (part.use_gpu, part.device, part.worker_resources) == (use_gpu, device, resources)
    assert ScalingPart.model_validate(part.model_dump(mode="json")) == part


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"accelerator": "tpu"}, "accelerator: Input should be 'auto', 'cpu', 'cuda', 'rocm' or 'hpu'"),
        (
            {"accelerator": "cpu", "use_gpu": True},
            "accelerator is cpu, but use_gpu is true: set scaling.use_gpu: false, or scaling.accelerator: auto",
        ),
        (
            {"accelerator": "cuda", "use_gpu": False},
            "accelerator is cuda, but use_gpu is false: set scaling.use_gpu: true, or scaling.accelerator: cpu",
        ),
        (
            {"accelerator": "hpu", "use_gpu": True},
            "accelerator is hpu, but use_gpu is true: set scaling.use_gpu: false",
        ),
        (
            {"accelerator": "hpu", "resources_per_worker": {"HPU": 0}},
            "accelerator: cpu, or scaling.resources_per_worker.HPU: 1",
        ),
        ({"accelerator": "hpu", "resources_per_worker": {"HPU": 0.5}}, "HPU is 0.5, but Gaudis cannot be shared"),
        ({"accelerator": "hpu", "backend": "nccl"}, "backend nccl needs GPUs"),
        ({"use_gpu": True, "backend": "hccl"}, "backend hccl is for Gaudi: set scaling.backend: auto"),
        ({"accelerator_type": "A100"}, "accelerator_type is A100, but no worker has an accelerator: set use_gpu: true"),
        (
            {"use_gpu": True, "accelerator_type": "A 100"},
            "accelerator_type: must begin with a letter or a digit, and hold only these",
        ),
        ({"label_selector": {"a b": "c"}}, "'a b' is not a label's name"),
        ({"label_selector": {"pool": ""}}, "pool: '' is not a condition: give a value, !value, in(a, b) or !in(a, b)"),
        ({"label_selector": {"pool": "in(a"}}, "pool: 'in(a' is not a condition"),
        ({"label_selector": {"pool": 1}}, "label_selector.pool: "),
    ],
)
def test_values_that_cannot_work_are_refused(scaling: dict[str, Any], words: str) -> None:
    assert words in refused(scaling)


def test_natively_gaudi_is_refused_with_the_reason_and_the_way_to_it() -> None:
    with pytest.raises(ConfigError) as error:
        build_config(content({"scaling.accelerator": "hpu"}), origin="my.yaml")
    assert "scaling.accelerator is hpu, but trainer: huggingface trains only on GPUs and CPUs" in str(error.value)
    assert "set trainer: script (docs/accelerators.md), or scaling.accelerator: cpu" in str(error.value)


@pytest.mark.parametrize("accelerator", ["auto", "cuda", "rocm"])
def test_natively_all_others_are_gpus(accelerator: str) -> None:
    wanted: TrainConfig = config({"scaling.accelerator": accelerator, "training.fp16": True})
    assert wanted.scaling.use_gpu


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("gaudi", {"gaudi"}),
        ("!gaudi", {"cpu", None}),
        ("in(gaudi, cpu)", {"gaudi", "cpu"}),
        ("in(cpu)", {"cpu"}),
        ("!in(gaudi,cpu)", {None}),
    ],
)
def test_labels_select_nodes_as_ray_does(condition: str, values: set[str | None]) -> None:
    part = ScalingPart(label_selector={"ray.io/pool": condition})
    nodes: dict[str | None, dict[str, str]] = {
        "gaudi": {"ray.io/pool": "gaudi"},
        "cpu": {"ray.io/pool": "cpu"},
        None: {},
    }
    assert {value for value, labels in nodes.items() if part.selects({"zone": "b", **labels})} == values


def test_all_labels_must_hold() -> None:
    part = ScalingPart(label_selector={"pool": "a", "zone": "!b"})
    assert part.selects({"pool": "a", "zone": "c"})
    assert not part.selects({"pool": "a", "zone": "b"})
