"""The shipped scripts on a real Slurm and Grid Engine: stopped by the time limit, queued again, as if undisturbed."""

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cluster_configs.rendering.cluster_spec import load_cluster_spec
from cluster_configs.rendering.render import render
from cluster_configs.rendering.targets import Target
from tests.integration.batch import grid_engine, slurm_cluster
from tests.integration.batch.grid_engine import GridEngine
from tests.integration.batch.machines import Machine
from tests.integration.batch.slurm_cluster import CPUS, Slurm
from tests.integration.driver_process import TIMEOUT_S, RayHead, Run
from tests.integration.forked_process import REPOSITORY, ForkedProcess
from tests.trainers.synthetic import content
from trainers.main import main

SPECS = REPOSITORY / "cluster_configs" / "specs"
MAX_STEPS, FROZEN_AT = 60, 5
NEAR = "the time limit is near: the run is asked to save a checkpoint"
MAIL = "ana@example.org"
SECRET = "not to be printed"


@dataclass(frozen=True)
class Work:
    """What the jobs train.

    Attributes:
        folder: Where the jobs are submitted from: a copy of nothing but links to the repository.
        tones: The data.
        calm: The undisturbed run.
        calm_s: How long it took.
    """

    folder: Path
    tones: Path
    calm: Run
    calm_s: float

    def run(self, name: str, storage: Path, log: Path) -> Run:
        """The run of a job."""
        return replace(self.calm, name=name, storage_path=str(storage), log=log)

    def spec(self, target: Target, *changes: str) -> str:
        """The script for a target, from its shipped spec with a test site's values."""
        secret = self.folder / "secret"
        own = [f"exports.PATH={Path(sys.executable).parent}:$PATH", f"recipe={self.calm.recipe}", "modules=[tests/1.0]"]
        own += [
            "exports.OMP_NUM_THREADS='1'",
            f"secrets={{TEST_TOKEN: {{file: {secret}}}}}",
            f"mail.to={MAIL}",
            *changes,
        ]
        return render(load_cluster_spec(SPECS / f"{target}.yaml", own), target)


@pytest.fixture(scope="module")
def work(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """With a run of two workers that nobody disturbs."""
    folder = tmp_path_factory.mktemp("batch")
    (folder / "task.py").symlink_to(REPOSITORY / "task.py")
    (folder / "secret").write_text(SECRET)
    changes: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "model.dropout": 0.2,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": MAX_STEPS,
        "training.eval_steps": MAX_STEPS,
        "training.logging_steps": 1,
        "decode.max_length": 4,
        "scaling.num_workers": 2,
        "scaling.placement_strategy": "SPREAD",
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content(changes)))
    calm = Run(RayHead("", ""), "calm", str(folder / "runs"), folder / "recipe.yaml", [], folder / "calm.log")
    begun = time.monotonic()
    arguments = ["--config", str(calm.recipe), "--set", "run.name=calm", "--set", f"run.storage_path={folder}/runs"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
        "OMP_NUM_THREADS": "1"
    }
    calm.driver = ForkedProcess(main, arguments, environment=environment, log=calm.log)
    calm.finish()
    return Work(folder, tones, calm, time.monotonic() - begun)


@dataclass
class Job:
    """A job of a scheduler, and its run.

    Attributes:
        run: Its run.
        folder: The scheduler's.
        hosts: Where it runs.
        ended: Whether it has ended.
        explain: Logs of the scheduler.
    """

    run: Run
    folder: Path
    hosts: list[Machine]
    ended: Callable[[], bool]
    explain: Callable[[], str]

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.run.log.read_text() if self.run.log.exists() else ""

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            late, over = time.monotonic() > end, self.ended()
            assert condition() or not (late or over), f"no {what}\n{self.output[-6000:]}\n{self.explain()}"
            time.sleep(0.1)

    @contextlib.contextmanager
    def frozen(self, named: str = "TrainWorker") -> Iterator[None]:
        """In the middle of training, and as long as the block runs."""
        self.wait_for(lambda: self.run.reached(FROZEN_AT), f"step {FROZEN_AT}")
        workers = [process for host in self.hosts for process in processes_of(host, named)]
        assert workers
        for process in workers:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in workers:
                process.send_signal(signal.SIGCONT)

    def wait_for_signal(self) -> None:
        """Waits for the time limit's signal, the next one where an earlier start was so slow that it had one, too."""
        before = self.output.count(NEAR)
        self.wait_for(lambda: self.output.count(NEAR) > before, "signal of the time limit")

    def check_closed(self, host: Machine) -> None:
        """Nobody else can use its Ray: the token is in a private file and in no command line, the dashboard is ours."""
        command = ["bash", "-c", "stat -c '%a %n' /tmp/rayscribe-*/token /tmp/tmp.*/token /tmp/*/tmp.*/token; true"]
        modes = [line.split() for line in host.run(command).splitlines() if line.endswith("/token")]
        assert [mode for mode, _ in modes] == ["600"], modes
        token = host.run(["cat", modes[0][1]])
        assert len(token) == 64
        assert token not in self.output
        assert processes_of(host, token) == []
        (dashboard,) = processes_of(host, "dashboard/dashboard.py")
        assert "--host=127.0.0.1" in dashboard.cmdline()

    def check(self, calm: Run) -> None:
        """It was stopped once with a checkpoint of its own, went on from there, and is as the undisturbed one."""
        stop = re.search(rf"stopped at step (\d+)/{MAX_STEPS}: (\S+) is in ", self.output)
        assert stop, self.output[-6000:]
        step = int(stop[1])
        assert FROZEN_AT <= step < MAX_STEPS
        assert f"resuming from {stop[2]}, step {step}\n" in self.output
        assert self.run.steps() == list(range(1, MAX_STEPS + 1)), "steps were repeated or left out"
        mine, theirs = self.run.checkpoints()[-1], calm.checkpoints()[-1]
        assert mine.step == theirs.step == MAX_STEPS
        assert mine.files["model.safetensors"]["sha256"] == theirs.files["model.safetensors"]["sha256"]
        assert mine.files["optimizer.pt"]["sha256"] == theirs.files["optimizer.pt"]["sha256"]
        assert mine.metrics == theirs.metrics
        assert SECRET not in self.output
        assert "module load tests/1.0" in self.output
        mails = (self.folder / "mails").read_text()
        assert MAIL in mails
        assert "Complete" in mails or "COMPLETED" in mails


def processes_of(host: Machine, word: str) -> list[psutil.Process]:
    """Processes of a host with a word in their command line."""
    found = []
    home = Path(f"/proc/{host.init}/ns/pid").readlink()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(f"/proc/{process.pid}/ns/pid").readlink() == home and word in " ".join(process.cmdline()):
                found.append(process)
    return found


def requeued(job: dict[str, str]) -> bool:
    """Whether Slurm has queued a job again, and nothing of its first start is left."""
    return (job["Restarts"], job["JobState"]) == ("1", "PENDING")


@pytest.fixture
def two_nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slurm]:
    slurm_cluster.skip_where_absent()
    work: Work = request.getfixturevalue("work")
    with slurm_cluster.started(tmp_path, ["node-1", "node-2"], [work.folder, work.tones]) as cluster:
        yield cluster


@pytest.fixture
def gpu_host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GridEngine]:
    grid_engine.skip_where_absent()
    work: Work = request.getfixturevalue("work")
    with grid_engine.started(tmp_path, [work.folder, work.tones]) as engine:
        yield engine


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(1800)
def test_slurm_queues_a_job_of_two_nodes_again_that_its_time_limit_stopped(two_nodes: Slurm, work: Work) -> None:
    script = two_nodes.folder / "slurm.sbatch"
    changes = ["pools.nodes.cpus=4", "pools.nodes.memory_gb=4", "pools.nodes.accelerators=2", "pools.nodes.min=2"]
    changes += ["pools.nodes.max=2", "pools.nodes.accelerator_type=null", "slurm.account=null", "name=digits"]
    script.write_text(work.spec(Target.SLURM, f"storage={two_nodes.folder}/runs", *changes))
    # Each worker takes all CPUs of its node.
    number = two_nodes.submit(str(script), "--set", f"scaling.resources_per_worker={{CPU: {CPUS}}}", folder=work.folder)
    run = work.run(f"digits-{number}", two_nodes.folder / "runs", work.folder / f"digits-{number}.out")
    over = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")

    def ended() -> bool:
        return two_nodes.job(number)["JobState"] in over

    job = Job(run, two_nodes.folder, [*two_nodes.hosts], ended, two_nodes.logs)
    with job.frozen():
        job.check_closed(two_nodes.hosts[0])
        minutes = two_nodes.job(number)["RunTime"].split(":")[1]
        # So long before its end that the signal is due.
        two_nodes.run("scontrol", "update", f"JobId={number}", f"TimeLimit={int(minutes) + 4}")
        job.wait_for_signal()
    job.wait_for(lambda: requeued(two_nodes.job(number)), "job in the queue")
    # Slurm waits for two minutes otherwise. In the second in which it ended the first start, nodes refuse the next one.
    two_nodes.run("scontrol", "update", f"JobId={number}", "StartTime=now+3seconds", "TimeLimit=60")
    job.wait_for(job.ended, "end")
    assert two_nodes.job(number)["JobState"] == "COMPLETED", job.output[-6000:]
    job.check(work.calm)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on_ray", [True, False], ids=["ray", "processes"])
def test_grid_engine_queues_a_job_again_that_its_time_limit_stopped(
    gpu_host: GridEngine, work: Work, on_ray: bool
) -> None:
    # So that training has begun when the signal comes; the undisturbed run is one without Ray.
    limit_s = round(1.5 * work.calm_s) + (100 if on_ray else 20)
    script = gpu_host.root / "sge.qsub"
    changes = ["pools.host.accelerators=2", "sge.slots=2", "sge.gpu_arch=ampere", "name=digits"]
    changes += [f"sge.signal_s={3600 - limit_s}", "sge.time_limit=1:00:00"]
    script.write_text(work.spec(Target.SGE, f"storage={gpu_host.root}/runs", *changes))
    # Without GPUs, a training of one machine has no need of Ray.
    number = gpu_host.submit(str(script), *(["--ray"] if on_ray else []), folder=work.folder)
    run = work.run(f"digits-{number}", gpu_host.root / "runs", work.folder / f"digits.{number}.log")

    def ended() -> bool:
        return " digits " not in gpu_host.states()

    job = Job(run, gpu_host.root, [gpu_host.host], ended, gpu_host.logs)
    # Frozen with the server that forks them.
    with job.frozen("TrainWorker" if on_ray else "forkserver"):
        if on_ray:
            job.check_closed(gpu_host.host)
        job.wait_for_signal()
        # Lifts the limit for the next start, which may take longer than this one on a loaded machine.
        gpu_host.run("qalter", "-l", "gpu,gpu_arch=ampere,s_rt=1:00:00,h_rt=2:00:00", str(number))
    job.wait_for(job.ended, "end")
    job.check(work.calm)
