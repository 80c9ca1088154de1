"""Renders a ClusterSpec as a batch script for Grid Engine: one host with GPUs. Pure."""

from collections.abc import Iterator

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.node_commands import exports_of_job, refuse_early_signal, seconds, what_runs
from cluster_configs.rendering.spec_parts import PoolPart, SgePart
from trainers.errors import ConfigError

# Grid Engine reports aborted and rescheduled jobs by one letter.
MAIL = {"begin": "b", "end": "e", "fail": "a", "requeue": "a"}
HEAD = """\
#!/bin/bash
# Trains a recipe on one Grid Engine host. Rendered by `rayscribe cluster render`; change the spec, and render it again.
# From the folder that holds task.py; further arguments are task.py's, as --set training.max_steps=50:
#   qsub sge.qsub
#   qdel JOB    (takes a checkpoint, for which the queue's `notify` time is left, and ends)
# With qsub -v RUN=NAME it continues the run NAME of an earlier job."""
SIGNALS = """\
# SIGUSR1 at the soft limit, SIGUSR2 the queue's `notify` time before the end."""
MODULES = """\
# Only login shells define `module`, and few sites start jobs in one.
type module > /dev/null 2>&1 || . /etc/profile"""
BODY = """\
# Stays the same when the job is queued again, so that the run continues.
run=${RUN:-$JOB_NAME-$JOB_ID}
# A worker takes one CPU next to its GPU, and Ray Data needs one as well: so that as many workers as slots fit, the Ray
# that task.py starts counts one more than there are slots, and not all CPUs of a host that other jobs use, too.
export RAYSCRIBE_CPUS=$((NSLOTS + 1))
# Univa's and Altair's Grid Engine say here which GPUs the job has; elsewhere the site sets CUDA_VISIBLE_DEVICES.
if [ -n "${SGE_HGR_gpu:-}" ]; then export CUDA_VISIBLE_DEVICES=${SGE_HGR_gpu// /,}; fi

# Who does not know the token, cannot use this Ray. It is made for this job, and never part of a command line. All ports
# are free ones, and on loopback, so that several jobs share a host.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(umask 077; head -c 32 /dev/urandom | od -A n -v -t x1 | tr -d ' \\n' > "$folder/token")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token RAY_TRAIN_ENABLE_STATE_TRACKING=1

driver='' limit=ahead
ask_to_end() {
    echo "$1: the run is asked to take a checkpoint and to end"
    kill -TERM "$driver" 2> /dev/null || true
}
trap 'limit=near; ask_to_end "the time limit is near"' USR1
trap 'ask_to_end "the job is about to be killed"' USR2
# Grid Engine signals every process of the job; these two are for this script alone.
(trap '' USR1 USR2; exec python task.py --config "$recipe" --set run.name="$run" \\
    --set run.storage_path="$storage" "$@") &
driver=$!
while kill -0 "$driver" 2> /dev/null; do wait "$driver" || true; done
wait "$driver" && code=0 || code=$?

# 143: the run has stored a checkpoint after SIGTERM, or there was nothing to store yet. 99: queue the job again.
if [ "$limit $requeue $code" = "near yes 143" ]; then
    echo "the job is queued again, and continues the run $run"
    code=99
fi
exit "$code"
"""


def sge_script(spec: ClusterSpec) -> str:
    """Renders the batch script.

    Raises:
        ConfigError: the spec lacks what Grid Engine needs.
    """
    modules = [MODULES] if spec.modules else []
    lines = [HEAD, *_options(spec), *modules, "set -eo pipefail", *exports_of_job(spec), *spec.setup, "set -u"]
    assert spec.sge is not None
    return "\n".join([*lines, what_runs(spec, requeue=spec.sge.requeue), BODY])


def _options(spec: ClusterSpec) -> Iterator[str]:
    part = spec.sge
    if part is None:
        raise ConfigError("sge: is missing: name at least the parallel environment, sge: {parallel_environment: smp}")
    _, pool = spec.pool(part.pool, "sge.pool")
    slots = part.slots or pool.cpus
    yield f"#$ -S /bin/bash -cwd -j y -N {spec.name} -o {part.output}"
    if spec.mail is not None:
        letters = "".join(sorted({MAIL[name] for name in spec.mail.when}))
        yield f"#$ -m {letters} -M {spec.mail.to}"
    yield from (f"#$ -{name} {value}" for name, value in (("q", part.queue), ("P", part.project)) if value is not None)
    if resources := [*_gpus(part, pool, slots), *(f"{name}={value}" for name, value in part.memory.items())]:
        yield f"#$ -l {','.join(resources)}"
    yield f"#$ -pe {part.parallel_environment} {slots}"
    yield SIGNALS
    yield f"#$ -notify -r {'y' if part.requeue else 'n'}"
    if part.time_limit is not None:
        refuse_early_signal(part.signal_s, part.time_limit, "sge")
        hours, rest = divmod(seconds(part.time_limit) - part.signal_s, 3600)
        yield f"#$ -l s_rt={hours}:{rest // 60:02}:{rest % 60:02},h_rt={part.time_limit}"
    yield from (f"#$ {option}" for option in part.options)


def _gpus(part: SgePart, pool: PoolPart, slots: int) -> Iterator[str]:
    if pool.accelerators and part.gpu_resource is not None:
        # By itself the option requests one, which sites count per slot; another number is used as it is.
        yield part.gpu_resource if pool.accelerators == slots else f"{part.gpu_resource}={pool.accelerators}"
    if part.gpu_arch is not None:
        yield f"gpu_arch={part.gpu_arch}"
