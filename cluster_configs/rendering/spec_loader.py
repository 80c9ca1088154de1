"""From the YAML of a cluster spec to a ClusterSpec."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_configs.rendering.cluster_spec import ClusterSpec
from trainers.config.loader import FileKind, read_yaml
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.validation import refuse, validated

SPEC = FileKind("spec", "cluster_configs/specs/local.yaml", "name, head, pools, storage, …")


def load_cluster_spec(path: Path, overrides: Sequence[str] = ()) -> ClusterSpec:
    """Reads a spec.

    Raises:
        ConfigError: one message with every problem, each with its field, value and fix.
    """
    content = apply_overrides(read_yaml(path, SPEC), [parse_override(text) for text in overrides])
    return build_cluster_spec(content, origin=str(path))


def build_cluster_spec(content: Mapping[str, Any], *, origin: str) -> ClusterSpec:
    """Validates the content of a spec.

    Raises:
        ConfigError: one message with every problem.
    """
    spec, problems = validated(ClusterSpec, content)
    refuse(problems, origin)
    assert spec is not None
    return spec
