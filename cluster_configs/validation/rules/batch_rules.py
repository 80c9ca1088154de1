"""Batch scripts: options that are read, time for a last checkpoint, and other people's Rays left alone."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import BATCH, ClusterFile, FileKind, Installed, Rule, Violation
from cluster_configs.validation.yaml_nodes import Place

SLURM = frozenset({FileKind.SLURM})
# Long enough for a step, and a checkpoint on a shared storage.
LEAST_WARNING_S = 60


def _directives_read(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for directive in file.directives:
        if directive.ignored:
            fix = "move it above the first command: Slurm reads no option after it"
            yield Violation(directive.place, f"{directive.name} {directive.text}".strip(), fix)


def _early_signal(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    if file.kind == FileKind.SLURM:
        signal = file.directive("--signal")
        found = re.search(r"@(\d+)$", signal.text) if signal else None
        if found is None or int(found[1]) < LEAST_WARNING_S:
            fix = f"add #SBATCH --signal=B:TERM@300 (at least {LEAST_WARNING_S} s): the run takes a last checkpoint"
            yield Violation(signal.place if signal else Place(line=1), signal.text if signal else "", fix)
    elif not file.directive("-notify") and not any("s_rt=" in found.text for found in file.directives):
        fix = "add #$ -l s_rt=… below h_rt, or #$ -notify: the run takes a last checkpoint before its time is over"
        yield Violation(Place(line=1), "", fix)


def _requeued(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    if file.kind == FileKind.SLURM:
        if file.directive("--requeue") is None or file.directive("--no-requeue") is not None:
            yield Violation(
                Place(line=1), "", "add #SBATCH --requeue: a lost node starts the job again, and it continues"
            )
        return
    again = file.directive("-r")
    if again is None or again.text not in ("y", "yes"):
        place = again.place if again else Place(line=1)
        yield Violation(
            place, again.text if again else "", "add #$ -r y: a lost host starts the job again, and it continues"
        )


def _output_kept(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    output = file.directive("--output", "-o")
    thrown_away = output is not None and output.text == "/dev/null"
    if thrown_away or (output is None and file.kind == FileKind.GRID_ENGINE):
        place = output.place if output else Place(line=1)
        yield Violation(place, output.text if output else "", "name a file that the job's number is a part of")


def _no_ray_stop(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    for place, command in file.commands():
        if re.search(r"(^|[/ ])ray stop( |$)", " ".join(command.words[:4])):
            fix = (
                "take it out: it ends every Ray of yours on the host, other jobs' too; the scheduler ends the job's own"
            )
            yield Violation(place, "ray stop", fix)


def _all_nodes(file: ClusterFile, installed: Installed) -> Iterator[Violation]:
    nodes = file.directive("--nodes")
    for place, start in file.ray_starts():
        if start.symmetric and "--min-nodes" not in start.options and nodes is not None and nodes.text != "1":
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
