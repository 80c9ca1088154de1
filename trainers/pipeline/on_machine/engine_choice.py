"""Chooses whether a command needs Ray; local workers start faster without it. Pure."""

from collections.abc import Mapping

from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.wording import counted

# Set by Ray for the driver of a job.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
USUAL_RESOURCES = {"CPU"}


def reason_for_ray(
    scaling: ScalingPart, address: str | None, variables: Mapping[str, str], *, asked: bool | None, has_joined: bool
) -> str | None:
    """Returns why a command runs on Ray, for a message; None if it runs in processes of this machine.

    Args:
        scaling: The scaling part of the config.
        address: Address of a cluster on the command line.
        variables: The environment.
        asked: True if the command line has --ray.
        has_joined: True if this process has joined a Ray before.
    """
    strange = sorted(scaling.worker_resources.keys() - USUAL_RESOURCES)
    reasons = {
        "--ray": asked,
        "--address": address,
        "RAY_ADDRESS": variables.get("RAY_ADDRESS"),
        "this is a job of Ray": JOB_VARIABLE in variables,
        "this process has joined it": has_joined,
        f"scaling.num_workers is {scaling.num_workers}": scaling.is_elastic,
        f"scaling asks for {', '.join(strange)}": strange,
        "scaling.label_selector": scaling.label_selector,
        f"scaling.placement_strategy is {scaling.placement_strategy}": scaling.placement_strategy == "STRICT_SPREAD",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def engine_line(reason: str | None) -> str:
    """Returns a line with the choice, its reason, and how to choose the other engine."""
    if reason is not None:
        return f"engine: Ray ({reason})"
    return "engine: processes of this machine, without Ray, which nothing here needs (--ray: on Ray)"


def crowding(workers: int, each: int, cpus: int) -> str | None:
    """Returns a warning if workers with `each` CPUs need more than this machine has; None if there are enough."""
    if workers * each <= cpus:
        return None
    of_each = f"of {counted(each, 'CPU')}"
    who = counted(workers, "worker", f"{of_each} shares", f"{of_each} share")
    more = f", where more than {counted(cpus, 'worker')} do not help" if workers > cpus else ""
    return f"{who} the {counted(cpus, 'CPU')} of this machine{more}"
