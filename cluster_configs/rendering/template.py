"""Renders the templates of this package: KubeRay's resources, and batch scripts."""

import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster_configs.rendering.commented_yaml import to_flow_yaml

# The filter `yaml` keeps a value's type for Kubernetes; `quote` makes it one word for a shell.
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"yaml": to_flow_yaml, "quote": shlex.quote}


def rendered(template: str, **values: Any) -> str:
    """Renders a template."""
    return _ENVIRONMENT.get_template(template).render(values)
