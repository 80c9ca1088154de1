from typing import Any

import pytest

from runtime_env.build import with_needed_packages
from runtime_env.config import RuntimeEnvPart
from tests.trainers.synthetic import config
from trainers.config.optional_packages import packages_for
from trainers.errors import ConfigError

PINS = {"deepspeed": "0.19.8", "ninja": "1.13.2", "flashlight-text": "0.0.7", "wandb": "0.31.0"}
ZERO = {"strategy.name": "deepspeed"}
PRIVATE = {"index_url": "https://${INDEX_USER}:${INDEX_PASSWORD}@pypi.example.org/simple"}


def packages(environment: dict[str, Any], changes: dict[str, Any]) -> list[str] | str | None:
    """What a job installs for a config with these changes."""
    part = RuntimeEnvPart.model_validate(environment)
    return with_needed_packages(part, packages_for(config(changes)), PINS).packages


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({}, []),
        (ZERO, ["deepspeed==0.19.8", "ninja==1.13.2"]),
        ({"training.report_to": ["wandb", "mlflow"]}, ["wandb==0.31.0", "mlflow-skinny"]),
    ],
)
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_what_the_config_needs_is_installed_in_the_pinned_version(
    changes: dict[str, Any], added: list[str], tool: str
) -> None:
    assert packages({tool: ["jiwer==4.0.0"]}, changes) == ["jiwer==4.0.0", *added]


def test_a_beam_search_needs_its_library() -> None:
    part = RuntimeEnvPart.model_validate({"pip": ["jiwer"]})
    searching = config({"model": {"family": "ctc", "init": "scratch"}, "decode": {"method": "beam"}})
    assert "flashlight-text==0.0.7" in (with_needed_packages(part, packages_for(searching), PINS).packages or [])


def test_what_is_named_already_stays_as_it_is() -> None:
    own = ["DeepSpeed[ops]==0.18.1", "ninja"]
    assert packages({"pip": own}, ZERO) == own
    by_url = ["deepspeed @ https://example.org/deepspeed.whl", "ninja"]
    assert packages({"pip": by_url}, ZERO) == by_url


def test_a_job_that_brings_nothing_has_the_packages_of_the_nodes() -> None:
    assert packages({}, ZERO) is None


def test_where_pip_installs_wheels_only_what_has_none_is_left_out_or_refused() -> None:
    locked = ["deepspeed==0.19.8", "jiwer==4.0.0"]
    assert packages({"pip": locked, **PRIVATE}, {}) == ["jiwer==4.0.0"]
    with pytest.raises(ConfigError, match=r"job.runtime_env.pip: strategy.name deepspeed .* use job.runtime_env.uv"):
        packages({"pip": locked, **PRIVATE}, ZERO)
    assert packages({"uv": locked, **PRIVATE}, {}) == locked


def test_a_list_with_hashes_is_not_added_to() -> None:
    hashed = ["tensorboard==2.21.0 --hash=sha256:" + "0" * 64]
    assert packages({"pip": hashed}, {}) == hashed
    with pytest.raises(ConfigError, match=r"strategy.name deepspeed needs deepspeed, .* have hashes: add it there"):
        packages({"pip": hashed}, ZERO)
