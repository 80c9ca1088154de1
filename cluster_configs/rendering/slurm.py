"""Renders a ClusterSpec as a batch script for Slurm: `ray symmetric-run` on complete nodes. Pure."""

from collections.abc import Iterator

from cluster_configs.rendering.cluster_spec import ClusterSpec
from cluster_configs.rendering.node_commands import exports_of_job, refuse_early_signal, what_runs
from trainers.errors import ConfigError

MAIL = {"begin": "BEGIN", "end": "END", "fail": "FAIL", "requeue": "REQUEUE"}
HEAD = """\
#!/bin/bash
# Trains a recipe on whole nodes of Slurm. Rendered by `rayscribe cluster render`; change the spec, and render it again.
# From the folder that holds task.py; further arguments are task.py's, as --set training.max_steps=50:
#   sbatch slurm.sbatch
#   scancel --batch --signal=TERM JOB    (takes a checkpoint, and ends; USR1 instead also queues the job again)
# With RUN=NAME in the environment of sbatch it continues the run NAME of an earlier job."""
WHOLE = """\
# Whole nodes: `ray symmetric-run` refuses a node with another Ray on it, and ends every Ray of the user in the end.
#SBATCH --exclusive"""
SIGNAL = """\
# Only this script gets the signal. Its output goes on where it ended when the job was queued again."""
BODY = """\
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
    own = "".join(f"    {line}\n" for line in ["set -eo pipefail", *exports_of_job(spec), *spec.setup])
    lines = [HEAD, *_options(spec), "set -euo pipefail"]
    assert spec.slurm is not None
    return "\n".join([*lines, what_runs(spec, requeue=spec.slurm.requeue), BODY.replace("@SETUP@", own)])


def _options(spec: ClusterSpec) -> Iterator[str]:
    part = spec.slurm
    if part is None:
        raise ConfigError("slurm: is missing: name at least the time limit, slurm: {time_limit: 24:00:00}")
    refuse_early_signal(part.signal_s, part.time_limit, "slurm")
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
    yield WHOLE
    yield f"#SBATCH --time={part.time_limit}"
    yield SIGNAL
    yield f"#SBATCH --signal=B:USR1@{part.signal_s}"
    yield f"#SBATCH --{'' if part.requeue else 'no-'}requeue"
    yield "#SBATCH --open-mode=append"
    yield f"#SBATCH --output={part.output}"
    if spec.mail is not None:
        yield f"#SBATCH --mail-user={spec.mail.to}"
        yield f"#SBATCH --mail-type={','.join(MAIL[name] for name in spec.mail.when)}"
    yield from (f"#SBATCH {option}" for option in part.options)
