"""A ClusterSpec: its fields, and whether it can be rendered. What is rendered is checked as any other file."""

from collections.abc import Iterator

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.render import RENDERERS, Target, render
from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Installed, Rule, Violation
from trainers.config.validation import validated
from trainers.errors import ConfigError

SPEC = frozenset({FileKind.SPEC})
# The part of a spec that each target needs.
PARTS = {Target.RAY_UP: "ray_up", Target.KUBERAY: "kubernetes", Target.SLURM: "slurm", Target.SGE: "sge"}


def rendered(file: ClusterFile) -> Iterator[tuple[str, str]]:
    """The file for each target that a spec has a part for; nothing for one that breaks a rule."""
    spec, _ = validated(ClusterSpec, file.document.value)
    for target, kind in RENDERERS:
        if spec is not None and getattr(spec, PARTS[target]) is not None:
            yield f"{target} {kind or ''}".strip(), render(spec, target, kind)


def _spec_fields(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    _, problems = validated(ClusterSpec, file.document.value)
    yield from (_violation(file, problem) for problem in problems)


def _renders(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    try:
        [*rendered(file)]
    except ConfigError as error:
        yield _violation(file, str(error))


def _violation(file: ClusterFile, problem: str) -> Violation:
    """A problem that begins with the field it is about."""
    field, _, fix = problem.partition(": ")
    return Violation(file.document.get(*field.split(".")).place, "", fix or problem)


RULES = (
    Rule("spec-fields", "the fields are those of a ClusterSpec", SPEC, _spec_fields),
    Rule("renders", "there is a file for each target that the spec has a part for", SPEC, _renders),
)
