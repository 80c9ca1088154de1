from typing import Any

import pytest
from pyarrow import fs

from tests.trainers.synthetic import config
from trainers.pipeline.on_ray.ray_engine import torch_config
from trainers.pipeline.on_ray.ray_fit import NEVER_S, run_config, scaling_config

ELASTIC = {"min": 2, "max": 4}
SCORE = {"checkpoint.checkpoint_score_attribute": "eval_wer"}


class TestScaling:
    def test_every_field_reaches_ray(self) -> None:
        scaling: Any = scaling_config(
            config(
                {
                    "scaling.num_workers": 3,
                    "scaling.use_gpu": True,
                    "scaling.resources_per_worker": {"CPU": 4, "GPU": 0.5},
                    "scaling.placement_strategy": "STRICT_SPREAD",
                    "scaling.accelerator_type": "A100",
                    "scaling.label_selector": {"pool": "!spot"},
                }
            ).scaling
        )
        assert scaling.num_workers == 3
        assert scaling.use_gpu is True
        assert scaling.resources_per_worker == {"CPU": 4, "GPU": 0.5, "accelerator_type:A100": 0.001}
        assert scaling.placement_strategy == "STRICT_SPREAD"
        assert (scaling.accelerator_type, scaling.label_selector) == ("A100", {"pool": "!spot"})

    def test_an_elastic_number_is_ray_s_which_leaves_a_change_of_size_to_us(self) -> None:
        scaling: Any = scaling_config(config({"scaling.num_workers": ELASTIC, "training.global_batch_size": 8}).scaling)
        assert (scaling.num_workers, scaling.min_workers, scaling.max_workers) == ((2, 4), 2, 4)
        assert scaling.elastic_resize_monitor_interval_s == NEVER_S

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, {"CPU": 1}),
            ({"scaling.use_gpu": True}, {"CPU": 1, "GPU": 1}),
            ({"scaling.use_gpu": True, "scaling.resources_per_worker": {"CPU": 8}}, {"CPU": 8, "GPU": 1}),
            ({"scaling.accelerator": "rocm"}, {"CPU": 1, "GPU": 1}),
            (
                {"scaling.resources_per_worker": {"accelerator_type:A100": 0.01}},
                {"CPU": 1, "accelerator_type:A100": 0.01},
            ),
        ],
    )
    def test_what_is_left_open_is_one_cpu_and_a_gpu_if_used(
        self, changes: dict[str, Any], expected: dict[str, float]
    ) -> None:
        assert scaling_config(config(changes).scaling).resources_per_worker == expected


@pytest.mark.parametrize("number", [1, 5, None])
@pytest.mark.parametrize("attribute", ["eval_wer", "eval_cer", "eval_ser"])
def test_every_checkpoint_field_reaches_ray(number: int | None, attribute: str) -> None:
    changes = {"checkpoint.num_to_keep": number, "checkpoint.checkpoint_score_attribute": attribute}
    made = run_config(config(changes), name="mine-a1", storage_path="/runs").checkpoint_config
    assert made is not None
    assert made.num_to_keep == number
    assert made.checkpoint_score_attribute == attribute
    assert made.checkpoint_score_order == "min"


@pytest.mark.parametrize(
    ("number", "workers", "expected"), [(-1, 1, -1), (0, 1, 0), (7, 1, 7), (7, ELASTIC, -1), (-1, ELASTIC, -1)]
)
def test_ray_limits_the_errors_of_its_controller_and_leaves_those_of_workers_to_us(
    number: int, workers: Any, expected: int
) -> None:
    changes = {"run.max_failures": number, "scaling.num_workers": workers, "training.global_batch_size": 8, **SCORE}
    made: Any = run_config(config(changes), name="mine-a1", storage_path="/runs").failure_config
    assert (made.max_failures, made.max_preemption_failures, made.controller_failure_limit) == (-1, -1, expected)


def test_each_attempt_is_a_run_of_its_own_for_ray() -> None:
    filesystem = fs.LocalFileSystem()
    made = run_config(
        config(
            {"run.max_failures": 2, "checkpoint.num_to_keep": 4, "checkpoint.checkpoint_score_attribute": "eval_wer"}
        ),
        name="mine-a5",
        storage_path="bucket/runs/mine/attempts/5/ray",
        filesystem=filesystem,
    )
    assert made.name == "mine-a5"
    assert made.storage_path == "bucket/runs/mine/attempts/5/ray"
    assert made.storage_filesystem is filesystem
    assert made.failure_config is not None
    assert made.failure_config.max_failures == -1
    assert made.checkpoint_config is not None
    assert made.checkpoint_config.num_to_keep == 4


def test_a_folder_needs_no_filesystem() -> None:
    made = run_config(
        config(SCORE),
        name="mine-a1",
        storage_path="/shared/runs/mine/attempts/1/ray",
    )
    assert (made.storage_path, made.storage_filesystem) == ("/shared/runs/mine/attempts/1/ray", None)


@pytest.mark.parametrize(("backend", "given"), [("auto", None), ("gloo", "gloo"), ("cpu:gloo,cuda:nccl",) * 2])
def test_the_backend_reaches_the_process_group(backend: str, given: str | None) -> None:
    made = torch_config(config({"scaling.backend": backend}))
    assert (made.backend, made.timeout_s) == (given, 1800)
