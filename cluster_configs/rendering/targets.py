"""What a spec may be rendered for. Imports no spec, since each command line has the choice."""

from enum import StrEnum


class Target(StrEnum):
    """What a spec is rendered for."""

    RAY_UP = "ray-up"
    KUBERAY = "kuberay"
    SLURM = "slurm"
    SGE = "sge"


class KubernetesKind(StrEnum):
    """Which of KubeRay's resources."""

    RAYCLUSTER = "raycluster"
    RAYJOB = "rayjob"
