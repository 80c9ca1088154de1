"""Renders a ClusterSpec as a batch script: for Slurm on complete nodes, for Grid Engine on one host with GPUs. Pure."""

import shlex

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.node_commands import exports_of
from cluster_configs.rendering.template import rendered
from trainers.errors import ConfigError

# Grid Engine has one letter for aborted and rescheduled jobs.
SGE_MAIL = {"begin": "b", "end": "e", "fail": "a", "requeue": "a"}


def slurm_script(spec: ClusterSpec) -> str:
    """Renders the batch script; raises ConfigError if the spec lacks what Slurm needs."""
    part = spec.slurm
    if part is None:
        raise ConfigError("slurm: is missing: name at least the time limit, slurm: {time_limit: 24:00:00}")
    _refuse_early_signal(part.signal_s, part.time_limit, "slurm")
    _, pool = spec.pool(part.pool, "slurm.pool")
    return rendered("slurm.sbatch.j2", spec=spec, part=part, pool=pool, exports=_exports_of_job(spec))


def sge_script(spec: ClusterSpec) -> str:
    """Renders the batch script; raises ConfigError if the spec lacks what Grid Engine needs."""
    part = spec.sge
    if part is None:
        raise ConfigError("sge: is missing: name at least the parallel environment, sge: {parallel_environment: smp}")
    _, pool = spec.pool(part.pool, "sge.pool")
    slots, soft_limit, resources = part.slots or pool.cpus, "", []
    if part.time_limit is not None:
        _refuse_early_signal(part.signal_s, part.time_limit, "sge")
        hours, rest = divmod(_seconds(part.time_limit) - part.signal_s, 3600)
        soft_limit = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    if pool.accelerators and part.gpu_resource is not None:
        # Without a number, the option requests one, which sites count per slot; a number is used as it is.
        count = "" if pool.accelerators == slots else f"={pool.accelerators}"
        resources.append(f"{part.gpu_resource}{count}")
    resources += [f"gpu_arch={part.gpu_arch}"] if part.gpu_arch is not None else []
    return rendered(
        "sge.qsub.j2",
        spec=spec,
        part=part,
        letters="".join(sorted({SGE_MAIL[name] for name in spec.mail.when})) if spec.mail is not None else "",
        resources=[*resources, *(f"{name}={value}" for name, value in part.memory.items())],
        slots=slots,
        soft_limit=soft_limit,
        exports=_exports_of_job(spec),
    )


def _exports_of_job(spec: ClusterSpec) -> list[str]:
    """Returns shell lines for the modules, variables and secrets of a spec; the job ends if it cannot read a secret.

    Raises:
        ConfigError: a secret is at a location that no node of a batch scheduler can read.
    """
    found, checks = {}, []
    for name, place in spec.secrets.items():
        if place.file is not None:
            # `export` exits with 0, even if the command in its value fails.
            text = shlex.quote(f"secrets.{name}: cannot read {place.file}")
            checks.append(f"[ -r {shlex.quote(place.file)} ] || {{ echo {text} >&2; exit 1; }}")
            found[name] = f"$(cat {shlex.quote(place.file)})"
        elif place.env is None:
            where = "only Kubernetes has Secrets" if place.kubernetes else "only `ray up` brings files to its nodes"
            raise ConfigError(f"secrets.{name}: {where}: give env or file for this target")
        elif place.env != name:
            found[name] = f"${place.env}"
    return [*checks, *exports_of(spec, found)]


def _seconds(time: str) -> int:
    """Returns the seconds of [D-]HH:MM:SS."""
    days, _, clock = time.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def _refuse_early_signal(signal_s: int, time_limit: str, field: str) -> None:
    """Raises ConfigError for a signal that would come before the job has begun."""
    if signal_s >= _seconds(time_limit):
        raise ConfigError(
            f"{field}.signal_s ({signal_s} s) is not less than {field}.time_limit ({time_limit}): lower it, or allow "
            "more time"
        )
