"""Batch scripts: options that are read, time for a last checkpoint, and other people's Rays left alone."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import BATCH, ClusterFile, FileKind, Installed, Rule, Violation
from cluster_configs.validation.yaml_nodes import Place

SLURM = frozenset({FileKind.SLURM})
# Long enough for a step, and a checkpoint on a shared storage.
LEAST_WARNING_S = 60
_OPTIONS = re.compile(r"#(?:SBATCH|\$)\s.*")
_RAY_STOP = re.compile(r"(?<![\w.-])ray\s+stop\b")
_COMMAND = re.compile(r"\s*[^#\s]")


def _option_lines(file: ClusterFile) -> Iterator[tuple[int, str, bool]]:
    """Number and text of each line with options, and whether the scheduler reads it: Slurm, above the first command."""
    begun = False
    for number, line in enumerate(file.text.splitlines(), 1):
        begun = begun or (file.kind == FileKind.SLURM and _COMMAND.match(line) is not None)
        if _OPTIONS.match(line):
            yield number, re.split(r"\s#", line)[0], not begun


def _option(file: ClusterFile, pattern: str) -> tuple[Place, re.Match[str] | None]:
    """The last option of a form that is read, and its place; without one, the first line."""
    found = [(Place(line=number), re.search(pattern, text)) for number, text, read in _option_lines(file) if read]
    return next(((place, match) for place, match in reversed(found) if match), (Place(line=1), None))


def _directives_read(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    fix = "move it above the first command: Slurm reads no option after it"
    yield from (Violation(Place(line=number), text, fix) for number, text, read in _option_lines(file) if not read)


def _early_signal(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    if file.kind == FileKind.SLURM:
        place, found = _option(file, r"--signal[=\s]\S*@(\d+)")
        if found is None or int(found[1]) < LEAST_WARNING_S:
            fix = f"add #SBATCH --signal=B:TERM@300 (at least {LEAST_WARNING_S} s): the run takes a last checkpoint"
            yield Violation(place, found[0] if found else "", fix)
    elif _option(file, r"-notify\b|\bs_rt=")[1] is None:
        fix = "add #$ -l s_rt=… below h_rt, or #$ -notify: the run takes a last checkpoint before its time is over"
        yield Violation(Place(line=1), "", fix)


def _requeued(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    slurm = file.kind == FileKind.SLURM
    place, found = _option(file, r"--(?:no-)?requeue\b" if slurm else r"-r\s+\w+")
    if found is None or found[0].split()[-1] not in ("--requeue", "y", "yes"):
        option, lost = ("#SBATCH --requeue", "node") if slurm else ("#$ -r y", "host")
        fix = f"add {option}: a lost {lost} starts the job again, and it continues"
        yield Violation(place, found[0] if found else "", fix)


def _output_kept(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    place, found = _option(file, r"(?:--output[=\s]|\s-o\s*)\s*(\S+)")
    if (found is not None and found[1] == "/dev/null") or (found is None and file.kind == FileKind.GRID_ENGINE):
        yield Violation(place, found[1] if found else "", "name a file that the job's number is a part of")


def _no_ray_stop(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    fix = "take it out: it ends every Ray of yours on the host, other jobs' too; the scheduler ends the job's own"
    yield from (Violation(place, "ray stop", fix) for place, _ in file.find(_RAY_STOP))


def _all_nodes(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    _, one = _option(file, r"(--nodes|-N)[=\s]\s*1\b")
    for place, start in file.ray_starts():
        if start.symmetric and "--min-nodes" not in start.options and one is None:
            fix = "add --min-nodes=$SLURM_JOB_NUM_NODES: the program starts before the other nodes have joined"
            yield Violation(place, "ray symmetric-run without --min-nodes", fix)


RULES = (
    Rule("directives-read", "the scheduler reads every option", SLURM, _directives_read),
    Rule("early-signal", "the job is told before its time is over", BATCH, _early_signal),
    Rule("requeued", "a job that lost its node is queued again", BATCH, _requeued),
    Rule("output-kept", "the job's output is kept", BATCH, _output_kept),
    Rule("no-ray-stop", "the job ends no other job's Ray", BATCH, _no_ray_stop),
    Rule("all-nodes", "the program waits for all nodes", SLURM, _all_nodes),
)
