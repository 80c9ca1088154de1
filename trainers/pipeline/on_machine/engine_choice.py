"""Whether a command needs Ray: one that only starts workers of this machine begins faster without. Pure."""

from collections.abc import Mapping

from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.wording import counted

# Ray sets it for the driver of a job.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
USUAL_RESOURCES = {"CPU"}


def reason_for_ray(
    scaling: ScalingPart, address: str | None, variables: Mapping[str, str], *, asked: bool | None, has_joined: bool
) -> str | None:
    """Why a command runs on Ray, to be shown; None: in processes of this machine.

    Args:
        scaling: What the config asks for.
        address: The cluster that the command line names.
        variables: The environment.
        asked: Whether the command line asks for Ray.
        has_joined: This process has joined a Ray before.
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
    """What was chosen and why, and how the other is."""
    if reason is not None:
        return f"engine: Ray ({reason})"
    return "engine: processes of this machine, without Ray, which nothing here needs (--ray: on Ray)"


def crowding(workers: int, each: int, cpus: int) -> str | None:
    """What to say where workers of so many CPUs `each` need more than this machine has; None: there are enough."""
    if workers * each <= cpus:
        return None
    of_each = f"of {counted(each, 'CPU')}"
    who = counted(workers, "worker", f"{of_each} shares", f"{of_each} share")
    more = f", where more than {counted(cpus, 'worker')} do not help" if workers > cpus else ""
    return f"{who} the {counted(cpus, 'CPU')} of this machine{more}"
