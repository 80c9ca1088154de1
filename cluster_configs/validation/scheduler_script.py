"""Reads a batch script: the scheduler's options in its comments, and the script itself."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import ClusterFile, Directive, FileKind, Script
from cluster_configs.validation.yaml_nodes import Place

_SLURM = re.compile(r"#SBATCH\s+(?P<options>.*)")
_GRID_ENGINE = re.compile(r"#\$\s+(?P<options>-.*)")
# Slurm's one-letter options (sbatch --help).
_LONG = {
    "-A": "--account", "-c": "--cpus-per-task", "-C": "--constraint", "-G": "--gpus", "-J": "--job-name",
    "-N": "--nodes", "-n": "--ntasks", "-o": "--output", "-e": "--error", "-p": "--partition", "-q": "--qos",
    "-t": "--time",
}  # fmt: skip


def batch_kind(text: str) -> FileKind | None:
    """Whose options come first in a script; None where there are none."""
    for line in text.splitlines():
        if _SLURM.match(line):
            return FileKind.SLURM
        if _GRID_ENGINE.match(line):
            return FileKind.GRID_ENGINE
    return None


def read_batch_script(text: str, kind: FileKind) -> ClusterFile:
    """A script for `sbatch` or `qsub`."""
    directives = _slurm_directives(text) if kind == FileKind.SLURM else _grid_engine_directives(text)
    return ClusterFile(kind, text, scripts=(Script(Place(), text, whole_file=True),), directives=tuple(directives))


def _slurm_directives(text: str) -> Iterator[Directive]:
    begun = False
    for number, line in enumerate(text.splitlines(), 1):
        if match := _SLURM.match(line):
            # A # with a space before it begins a comment, here too.
            option = re.split(r"\s#", match["options"])[0].strip()
            name, value = ([*re.split(r"[=\s]+", option, maxsplit=1), ""])[:2]
            if not name.startswith("--") and len(name) > 2:
                name, value = name[:2], name[2:]
            yield Directive(Place(line=number), value.strip("\"'"), _LONG.get(name, name), ignored=begun)
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = True


def _grid_engine_directives(text: str) -> Iterator[Directive]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := _GRID_ENGINE.match(line):
            for name, value in re.findall(r"(?:^|\s)(-\w+)((?:\s+(?!-)\S+)*)", match["options"]):
                yield Directive(Place(line=number), value.strip(), name)
