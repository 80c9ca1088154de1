"""Targets of a spec. Does not import the spec, since every command of `rayscribe` imports this file."""

from enum import StrEnum


class Target(StrEnum):
    """Target for which a spec is rendered."""

    RAY_UP = "ray-up"
    KUBERAY = "kuberay"
    SLURM = "slurm"
    SGE = "sge"


class KubernetesKind(StrEnum):
    """Kind of KubeRay's resource."""

    RAYCLUSTER = "raycluster"
    RAYJOB = "rayjob"
