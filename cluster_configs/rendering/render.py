"""The table of targets with their renderers."""

from collections.abc import Callable, Mapping

from cluster_configs.rendering.batch_scripts import sge_script, slurm_script
from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.kuberay import raycluster_file, rayjob_file
from cluster_configs.rendering.ray_up import ray_up_file
from cluster_configs.rendering.targets import KubernetesKind, Target
from trainers.errors import ConfigError

# By target, and for KubeRay by kind; the first kind of a target is its default.
RENDERERS: Mapping[tuple[Target, KubernetesKind | None], Callable[[ClusterSpec], str]] = {
    (Target.RAY_UP, None): ray_up_file,
    (Target.KUBERAY, KubernetesKind.RAYCLUSTER): raycluster_file,
    (Target.KUBERAY, KubernetesKind.RAYJOB): rayjob_file,
    (Target.SLURM, None): slurm_script,
    (Target.SGE, None): sge_script,
}


# Fields of a spec that a target does not use, and what replaces them.
WITHOUT: Mapping[Target, Mapping[str, str]] = {
    Target.RAY_UP: {"mail": "batch schedulers send mail"},
    Target.KUBERAY: {
        "mail": "batch schedulers send mail",
        "modules": "the image has what they load",
        "setup": "build it into the image",
    },
}


def unused(spec: ClusterSpec, target: Target) -> list[str]:
    """Returns a line for each field that the spec sets and the target does not use."""
    without = WITHOUT.get(target, {})
    lines = [f"{name} is not used by {target}: {why}" for name, why in without.items() if getattr(spec, name)]
    return lines + [
        f"pools.{name}: hardware hpu is for scripts (trainer: script, scaling.accelerator: hpu); trainer: huggingface "
        "trains on GPUs and CPUs only"
        for name, pool in spec.pools.items()
        if pool.hardware == "hpu"
    ]


def render(spec: ClusterSpec, target: Target, kind: KubernetesKind | None = None) -> str:
    """Renders the file for one target.

    Raises:
        ConfigError: the spec lacks what the target needs, or the target has no kinds.
    """
    kinds = [of for name, of in RENDERERS if name == target]
    if kind is not None and kind not in kinds:
        raise ConfigError(f"--kind {kind}: {target} has no kinds: leave it out, or use --target {Target.KUBERAY}")
    return RENDERERS[target, kind or kinds[0]](spec)
