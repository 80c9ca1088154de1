"""Batch scripts: options of the scheduler, and what a spec may not say."""

import os
import subprocess
from pathlib import Path

import pytest

from cluster_configs.rendering.cluster_spec import load_cluster_spec
from cluster_configs.rendering.render import render
from cluster_configs.rendering.targets import Target
from tests.test_architecture import ROOT
from trainers.errors import ConfigError

SPECS = ROOT / "cluster_configs" / "specs"


def script(target: Target, *changes: str) -> str:
    return render(load_cluster_spec(SPECS / f"{target}.yaml", changes), target)


@pytest.mark.parametrize(
    ("target", "change", "lines"),
    [
        (Target.SLURM, "slurm.gpu_option=gpus-per-node", ["#SBATCH --gpus-per-node=a100:4"]),
        (Target.SLURM, "pools.nodes.accelerator_type=null", ["#SBATCH --gres=gpu:4"]),
        (Target.SLURM, "pools.nodes.hardware=hpu", ["#SBATCH --gres=hpu:a100:4"]),
        (Target.SLURM, "slurm.requeue=false", ["#SBATCH --no-requeue", "recipe=jobs/specs/whisper_micro.yaml"]),
        (Target.SLURM, "slurm.options=[--constraint=nvlink]", ["#SBATCH --constraint=nvlink"]),
        (Target.SLURM, "mail.when=[begin, requeue]", ["#SBATCH --mail-type=BEGIN,REQUEUE"]),
        (Target.SLURM, "setup=[ulimit -n 65536]", ["    ulimit -n 65536"]),
        (Target.SGE, "setup=[ulimit -n 65536]", ["ulimit -n 65536"]),
        # As many as slots: the resource alone, which counts by slot.
        (Target.SGE, "sge.slots=4", ["#$ -l gpu,gpu_arch=l40s", "#$ -pe mthread 4"]),
        (Target.SGE, "sge.slots=8", ["#$ -l gpu=4,gpu_arch=l40s", "#$ -pe mthread 8"]),
        (Target.SGE, "sge.memory={h_vmem: 8G}", ["#$ -l gpu,gpu_arch=l40s,h_vmem=8G"]),
        (Target.SGE, "sge.time_limit=100:00:30", ["#$ -l s_rt=99:55:30,h_rt=100:00:30"]),
        # Without quotes YAML reads it as a number of base 60.
        (Target.SGE, "sge.time_limit=36:00:00", ["#$ -l s_rt=35:55:00,h_rt=36:00:00"]),
        (Target.SGE, "mail.when=[begin, end, fail, requeue]", ["#$ -m abe -M ana@example.org"]),
        (Target.SGE, "sge.requeue=false", ["#$ -notify -r n"]),
        (Target.SGE, "sge.project=speech", ["#$ -P speech"]),
    ],
)
def test_a_spec_decides_about_the_options(target: Target, change: str, lines: list[str]) -> None:
    text = script(target, change)
    for line in lines:
        assert any(found.startswith(line) for found in text.splitlines()), f"no {line} in\n{text}"


@pytest.mark.parametrize("target", [Target.SLURM, Target.SGE])
def test_a_script_runs_task_py_with_a_token_of_its_own_and_one_cpu_for_data(target: Target) -> None:
    text = script(target)
    assert "python task.py --config" in text
    assert "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token" in text
    assert "umask 077" in text
    assert {Target.SLURM: "SLURM_CPUS_ON_NODE + 1", Target.SGE: "NSLOTS + 1"}[target] in text


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        (Target.SLURM, "slurm=null", "slurm: is missing"),
        (Target.SGE, "sge=null", "sge: is missing"),
        (Target.SLURM, "slurm.pool=fast", r"slurm.pool: must be one of the pools nodes \(got 'fast'\)"),
        (Target.SLURM, "slurm.time_limit=0:05:00", r"slurm.signal_s \(300 s\) is not less than slurm.time_limit"),
        (Target.SGE, "sge.signal_s=90000", r"sge.signal_s \(90000 s\) is not less than sge.time_limit \(24:00:00\)"),
        (Target.SGE, "secrets={HF_TOKEN: {kubernetes: hub}}", "secrets.HF_TOKEN: only Kubernetes has Secrets"),
        (Target.SLURM, "secrets={HF_TOKEN: {client_file: /a/b}}", "secrets.HF_TOKEN: only `ray up` brings files"),
    ],
)
def test_what_a_scheduler_cannot_do_is_refused(target: Target, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        script(target, change)


def programs(folder: Path, **texts: str) -> str:
    """A PATH on which programs of these names come first."""
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("ray", "code"),
    [
        ("echo 'Failed to start Ray'; exit 0", 1),
        ("exit 4", 4),
        ('while [ "$1" != -- ]; do shift; done; shift; "$@"', 7),
    ],
    ids=["not-started", "failed", "started"],
)
def test_a_slurm_job_whose_ray_did_not_start_has_failed(ray: str, code: int, tmp_path: Path) -> None:
    # With one node `ray symmetric-run` ends with 0 where `ray start` fails.
    srun = 'while [[ "$1" == --* ]]; do shift; done; exec "$@"'
    path = programs(tmp_path, srun=srun, ray=f"echo ray\n{ray}", python="exit 7")
    changes = ("modules=[]", "exports={}", "secrets={}", f'setup=["export PATH={tmp_path}:$PATH"]')
    environment = {"PATH": path, "SLURM_JOB_NAME": "a", "SLURM_JOB_ID": tmp_path.name, "SLURM_JOB_NUM_NODES": "1"}
    ended = subprocess.run(
        ["bash", "-c", script(Target.SLURM, *changes)],
        env={**environment, "SLURM_CPUS_ON_NODE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ("Ray did not start" in ended.stderr) == (code == 1)


@pytest.mark.parametrize("defined", [True, False])
def test_modules_are_loaded_in_a_shell_that_is_no_login_shell(defined: bool, tmp_path: Path) -> None:
    loads = f"module() {{ echo $* >> {tmp_path}/loaded; }}"
    (tmp_path / "profile").write_text(f"false\necho $UNSET\n{loads}\n")
    text = script(Target.SGE, "exports={}", "secrets={}").replace("/etc/profile", str(tmp_path / "profile"))
    text = text[: text.index("set -u")]
    if defined:
        text = f"{loads}\n{text}"
        (tmp_path / "profile").unlink()
    subprocess.run(["bash", "-c", text], env={"PATH": os.environ["PATH"]}, timeout=60, check=True)
    assert (tmp_path / "loaded").read_text() == "load cuda/12.8\n"


@pytest.mark.parametrize("target", [Target.SLURM, Target.SGE])
def test_a_secret_whose_file_is_missing_ends_the_job_with_its_name(target: Target, tmp_path: Path) -> None:
    missing = tmp_path / "hf_token"
    text = script(target, "modules=[]", "exports={}", f"secrets={{HF_TOKEN: {{file: '{missing}'}}}}")
    (start,) = [line for line in text.splitlines() if "secrets.HF_TOKEN" in line]
    for expected in (1, 0):
        done = subprocess.run(["bash", "-c", f"set -eo pipefail\n{start}"], capture_output=True, text=True, check=False)
        assert done.returncode == expected
        assert (f"secrets.HF_TOKEN: cannot read {missing}" in done.stderr) == (expected == 1)
        missing.write_text("x")
    assert text.index("secrets.HF_TOKEN") < text.index("export HF_TOKEN")
