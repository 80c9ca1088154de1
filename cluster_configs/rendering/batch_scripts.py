"""Renders a ClusterSpec as a batch script: for Slurm on complete nodes, for Grid Engine on one host with GPUs. Pure."""

import shlex
from collections.abc import Iterator

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.node_commands import exports_of
from cluster_configs.rendering.spec_parts import PoolPart, SgePart, SlurmPart
from trainers.errors import ConfigError

SLURM_MAIL = {"begin": "BEGIN", "end": "END", "fail": "FAIL", "requeue": "REQUEUE"}
SLURM_HEAD = """\
#!/bin/bash
# Trains a recipe on whole nodes of Slurm. Rendered by `rayscribe cluster render`; change the spec, and render it again.
# From the folder that holds task.py; further arguments are task.py's, as --set training.max_steps=50:
#   sbatch slurm.sbatch
#   scancel --batch --signal=TERM JOB    (takes a checkpoint, and ends; USR1 instead also queues the job again)
# With RUN=NAME in the environment of sbatch it continues the run NAME of an earlier job."""
SLURM_WHOLE = """\
# Whole nodes: `ray symmetric-run` refuses a node with another Ray on it, and ends every Ray of the user in the end.
#SBATCH --exclusive"""
SLURM_SIGNAL = """\
# Only this script gets the signal. Its output goes on where it ended when the job was queued again."""
SLURM_BODY = """\
# Stays the same when the job is queued again, so that the run continues.
run=${RUN:-$SLURM_JOB_NAME-$SLURM_JOB_ID}
# Of each node alone, and short: Ray's sockets lie in it.
folder=/tmp/rayscribe-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
# The address at which the other nodes reach this one, the first.
head=${HEAD_ADDRESS:-$(hostname --all-ip-addresses | cut -d ' ' -f 1)}
export recipe storage run folder head

# Who does not know the token, cannot use this Ray. It is made for this job, and never part of a command line.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token
export RAY_TMPDIR=$folder RAY_ADDRESS=$head:6379 RAY_TRAIN_ENABLE_STATE_TRACKING=1
# Seconds that the nodes have to come up.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
on_each_node=(srun --ntasks-per-node=1 --cpu-bind=none)
trap '"${on_each_node[@]}" rm -rf "$folder"' EXIT
head -c 32 /dev/urandom | od -A n -v -t x1 | tr -d ' \\n' |
    "${on_each_node[@]}" bash -c 'umask 077; mkdir "$folder" && cat > "$folder/token"'

# What the first node runs when Ray is up. Its exit code goes to a file, since srun's may be another node's.
train() {
    python task.py --config "$recipe" --set run.name="$run" --set run.storage_path="$storage" "$@" &
    echo $! > "$folder/driver"
    wait $! && code=0 || code=$?
    echo "$code" > "$folder/code"
    return "$code"
}
# A worker takes one CPU next to its GPU, and Ray Data needs one as well: so that a node holds as many workers as it has
# CPUs, Ray counts one more. Modules and variables are those of each node.
start() {
@SETUP@    ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" \\
        --num-cpus=$((SLURM_CPUS_ON_NODE + 1)) --num-gpus="${SLURM_GPUS_ON_NODE:-0}" \\
        --dashboard-host=127.0.0.1 --disable-usage-stats -- bash -c 'train "$@"' train "$@" 2>&1 |
        grep --line-buffered --invert-match 'Send termination request'
}
export -f train start

ask_to_end() {
    echo "$1: the run is asked to take a checkpoint and to end"
    until kill -TERM "$(cat "$folder/driver")" 2> /dev/null; do
        kill -0 "$nodes" 2> /dev/null || return 0
        sleep 1
    done
}
limit=ahead
trap 'limit=near; ask_to_end "the time limit is near"' USR1
trap 'ask_to_end "the job was told to end"' TERM
# The other nodes end when the first has.
"${on_each_node[@]}" --wait=15 bash -l -c 'start "$@"' start "$@" &
nodes=$!
while kill -0 "$nodes" 2> /dev/null; do wait "$nodes" || true; done
wait "$nodes" && code=0 || code=$?
if [ -s "$folder/code" ]; then
    code=$(cat "$folder/code")
elif [ "$code" = 0 ]; then
    # `ray symmetric-run` says 0 where its Ray does not start.
    echo "Ray did not start: the recipe was not run" >&2
    code=1
fi
trap - EXIT
"${on_each_node[@]}" rm -rf "$folder"

# 143: the run has stored a checkpoint after SIGTERM, or there was nothing to store yet.
if [ "$limit $requeue $code" = "near yes 143" ]; then
    echo "the job is queued again, and continues the run $run"
    scontrol requeue "$SLURM_JOB_ID"
    # Slurm now ends what still runs of the job, this script too.
    exec sleep 300
fi
exit "$code"
"""


def slurm_script(spec: ClusterSpec) -> str:
    """Renders the batch script.

    Raises:
        ConfigError: the spec lacks what Slurm needs.
    """
    part = spec.slurm
    if part is None:
        raise ConfigError("slurm: is missing: name at least the time limit, slurm: {time_limit: 24:00:00}")
    own = "".join(f"    {line}\n" for line in ["set -eo pipefail", *_exports_of_job(spec), *spec.setup])
    lines = [SLURM_HEAD, *_slurm_options(spec, part), "set -euo pipefail"]
    return "\n".join([*lines, _what_runs(spec, requeue=part.requeue), SLURM_BODY.replace("@SETUP@", own)])


def _slurm_options(spec: ClusterSpec, part: SlurmPart) -> Iterator[str]:
    _refuse_early_signal(part.signal_s, part.time_limit, "slurm")
    _, pool = spec.pool(part.pool, "slurm.pool")
    yield f"#SBATCH --job-name={spec.name}"
    for name in ("partition", "account", "qos"):
        if (value := getattr(part, name)) is not None:
            yield f"#SBATCH --{name}={value}"
    yield f"#SBATCH --nodes={pool.max}"
    yield "#SBATCH --ntasks-per-node=1"
    yield f"#SBATCH --cpus-per-task={pool.cpus}"
    yield f"#SBATCH --mem={pool.memory_gb}G"
    if pool.accelerators:
        kind = f"{pool.accelerator_type}:" if pool.accelerator_type else ""
        device = "hpu" if pool.hardware == "hpu" else "gpu"
        option = f"--gres={device}:" if part.gpu_option == "gres" else "--gpus-per-node="
        yield f"#SBATCH {option}{kind}{pool.accelerators}"
    yield SLURM_WHOLE
    yield f"#SBATCH --time={part.time_limit}"
    yield SLURM_SIGNAL
    yield f"#SBATCH --signal=B:USR1@{part.signal_s}"
    yield f"#SBATCH --{'' if part.requeue else 'no-'}requeue"
    yield "#SBATCH --open-mode=append"
    yield f"#SBATCH --output={part.output}"
    if spec.mail is not None:
        yield f"#SBATCH --mail-user={spec.mail.to}"
        yield f"#SBATCH --mail-type={','.join(SLURM_MAIL[name] for name in spec.mail.when)}"
    yield from (f"#SBATCH {option}" for option in part.options)


# Grid Engine reports aborted and rescheduled jobs by one letter.
SGE_MAIL = {"begin": "b", "end": "e", "fail": "a", "requeue": "a"}
SGE_HEAD = """\
#!/bin/bash
# Trains a recipe on one Grid Engine host. Rendered by `rayscribe cluster render`; change the spec, and render it again.
# From the folder that holds task.py; further arguments are task.py's, as --set training.max_steps=50:
#   qsub sge.qsub
#   qdel JOB    (takes a checkpoint, for which the queue's `notify` time is left, and ends)
# With qsub -v RUN=NAME it continues the run NAME of an earlier job."""
SGE_SIGNALS = """\
# SIGUSR1 at the soft limit, SIGUSR2 the queue's `notify` time before the end."""
SGE_MODULES = """\
# Only login shells define `module`, and few sites start jobs in one.
type module > /dev/null 2>&1 || . /etc/profile"""
SGE_BODY = """\
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
    part = spec.sge
    if part is None:
        raise ConfigError("sge: is missing: name at least the parallel environment, sge: {parallel_environment: smp}")
    lines = [SGE_HEAD, *_sge_options(spec, part), *([SGE_MODULES] if spec.modules else []), "set -eo pipefail"]
    own = [*_exports_of_job(spec), *spec.setup, "set -u", _what_runs(spec, requeue=part.requeue)]
    return "\n".join([*lines, *own, SGE_BODY])


def _sge_options(spec: ClusterSpec, part: SgePart) -> Iterator[str]:
    _, pool = spec.pool(part.pool, "sge.pool")
    slots = part.slots or pool.cpus
    yield f"#$ -S /bin/bash -cwd -j y -N {spec.name} -o {part.output}"
    if spec.mail is not None:
        letters = "".join(sorted({SGE_MAIL[name] for name in spec.mail.when}))
        yield f"#$ -m {letters} -M {spec.mail.to}"
    yield from (f"#$ -{name} {value}" for name, value in (("q", part.queue), ("P", part.project)) if value is not None)
    if resources := [*_sge_gpus(part, pool, slots), *(f"{name}={value}" for name, value in part.memory.items())]:
        yield f"#$ -l {','.join(resources)}"
    yield f"#$ -pe {part.parallel_environment} {slots}"
    yield SGE_SIGNALS
    yield f"#$ -notify -r {'y' if part.requeue else 'n'}"
    if part.time_limit is not None:
        _refuse_early_signal(part.signal_s, part.time_limit, "sge")
        hours, rest = divmod(_seconds(part.time_limit) - part.signal_s, 3600)
        yield f"#$ -l s_rt={hours}:{rest // 60:02}:{rest % 60:02},h_rt={part.time_limit}"
    yield from (f"#$ {option}" for option in part.options)


def _sge_gpus(part: SgePart, pool: PoolPart, slots: int) -> Iterator[str]:
    if pool.accelerators and part.gpu_resource is not None:
        # By itself the option requests one, which sites count per slot; another number is used as it is.
        yield part.gpu_resource if pool.accelerators == slots else f"{part.gpu_resource}={pool.accelerators}"
    if part.gpu_arch is not None:
        yield f"gpu_arch={part.gpu_arch}"


def _what_runs(spec: ClusterSpec, *, requeue: bool) -> str:
    """Returns a line that names the recipe, the storage of its results, and whether the job is queued again."""
    return f"recipe={shlex.quote(spec.recipe)} storage={shlex.quote(spec.storage)} requeue={'yes' if requeue else 'no'}"


def _exports_of_job(spec: ClusterSpec) -> list[str]:
    """Returns a shell line for each module, variable and secret of a spec; the job ends if a secret's file is missing.

    Raises:
        ConfigError: a secret is at a location that no node of a batch scheduler can read.
    """
    found, checks = {}, []
    for name, place in spec.secrets.items():
        if place.file is not None:
            # `export` exits with 0, even if the command in its value fails.
            text = shlex.quote(f"secrets.{name}: cannot read {place.file}")
            checks.append(f"[ -r {shlex.quote(place.file)} ] || {{ echo {text} >&2; exit 1; }}")
            found[name] = f"$(cat {shlex.quote(place.file)})"
        elif place.env is None:
            where = "only Kubernetes has Secrets" if place.kubernetes else "only `ray up` brings files to its nodes"
            raise ConfigError(f"secrets.{name}: {where}: give env or file for this target")
        elif place.env != name:
            found[name] = f"${place.env}"
    return [*checks, *exports_of(spec, found)]


def _seconds(time: str) -> int:
    """Returns the seconds of [D-]HH:MM:SS."""
    days, _, clock = time.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def _refuse_early_signal(signal_s: int, time_limit: str, field: str) -> None:
    """Raises ConfigError for a signal that would come before the job has begun."""
    if signal_s >= _seconds(time_limit):
        raise ConfigError(
            f"{field}.signal_s ({signal_s} s) is not less than {field}.time_limit ({time_limit}): lower it, or allow "
            "more time"
        )
