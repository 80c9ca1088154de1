"""Which commands run on Ray, and what is said of it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.trainers.synthetic import config
from trainers.pipeline.verbs import JOB_VARIABLE, crowding, engine_line, reason_for_ray


def reason(
    changes: dict[str, Any],
    address: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    has_joined: bool = False,
) -> str | None:
    return reason_for_ray(config(changes).scaling, address, variables, asked=None, has_joined=has_joined)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scaling.num_workers": 3, "scaling.placement_strategy": "SPREAD"},
        {"scaling.resources_per_worker": {"CPU": 4}, "scaling.accelerator": "cpu"},
    ],
)
def test_workers_that_a_machine_can_start_itself_need_no_ray(changes: dict[str, Any]) -> None:
    assert reason(changes) is None
    assert "--ray" in engine_line(None)


ELASTIC = {"scaling.num_workers": {"min": 1, "max": 3}, "training.global_batch_size": 8}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (ELASTIC, "scaling.num_workers is 1 to 3"),
        ({"scaling.use_gpu": True}, "scaling asks for GPU"),
        ({"scaling.resources_per_worker": {"CPU": 1, "mine": 2}}, "scaling asks for mine"),
        ({"scaling.label_selector": {"pool": "a"}}, "scaling.label_selector"),
        ({"scaling.placement_strategy": "STRICT_SPREAD"}, "scaling.placement_strategy is STRICT_SPREAD"),
    ],
)
def test_what_a_recipe_asks_of_ray_runs_there(changes: dict[str, Any], expected: str) -> None:
    assert reason(changes) == expected
    assert engine_line(expected) == f"engine: Ray ({expected})"


def test_a_command_that_names_a_cluster_or_runs_on_one_stays_there() -> None:
    assert reason({}, address="10.0.0.1:6379") == "--address"
    assert reason({}, variables={"RAY_ADDRESS": "10.0.0.1:6379"}) == "RAY_ADDRESS"
    assert reason({}, variables={JOB_VARIABLE: "{}"}) == "this is a job of Ray"
    assert reason({}, has_joined=True) == "this process has joined it"
    assert reason_for_ray(config().scaling, None, {}, asked=True, has_joined=False) == "--ray"


OURS = "the 2 CPUs of this machine"


@pytest.mark.parametrize(
    ("workers", "cpus_of_each", "said"),
    [
        (2, 1, None),
        (1, 2, None),
        (8, 1, f"8 workers of 1 CPU share {OURS}, where more than 2 workers do not help"),
        (2, 2, f"2 workers of 2 CPUs share {OURS}"),
        (1, 4, f"1 worker of 4 CPUs shares {OURS}"),
    ],
)
def test_more_workers_than_cpus_are_told_of(workers: int, cpus_of_each: int, said: str | None) -> None:
    assert crowding(workers, cpus_of_each, cpus=2) == said
