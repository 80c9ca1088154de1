"""StrategyPart → arguments of the Hugging Face Trainer."""

import importlib.util
from typing import Any

from trainers.config.parts.strategy_part import StrategyPart, ds_config_of
from trainers.errors import ConfigError


def strategy_arguments(part: StrategyPart) -> dict[str, Any]:
    """The Trainer's arguments of a strategy; none for DDP, which is what it does with several ranks. Pure."""
    if part.name == "deepspeed":
        return {"deepspeed": ds_config_of(part)}
    if part.name == "fsdp":
        return {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
    return {}


def missing_package(part: StrategyPart) -> str | None:
    """Says which package the strategy needs and this Python does not have; None where it has it."""
    if part.name == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        return (
            "strategy.name deepspeed needs the package deepspeed, which is not installed: "
            "pip install deepspeed (on a cluster: job.runtime_env.pip), or set strategy.name: ddp"
        )
    return None


def refuse_missing_package(part: StrategyPart) -> None:
    """Refuses a strategy whose package is not installed.

    Raises:
        ConfigError: names the package.
    """
    problem = missing_package(part)
    if problem is not None:
        raise ConfigError(problem)
