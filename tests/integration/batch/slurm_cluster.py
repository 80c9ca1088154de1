"""A real Slurm for tests: munge, controller, and a slurmd on each host; with keys and spools of their own."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.batch.machines import Machine, machines, mailer, skip_without, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
CPUS, GPUS = 4, 2
CONFIG = """
ClusterName=tests
SlurmctldHost={head}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
# Without control groups: by parent processes.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
MpiDefault=none
GresTypes=gpu
MailProg={folder}/mail
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
KillWait=10
ReturnToService=2
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A Slurm whose daemons run.

    Attributes:
        hosts: Its hosts; the first runs the controller, too.
        folder: Its configuration, state and logs, which the hosts share.
    """

    hosts: Sequence[Machine]
    folder: Path

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Runs one of Slurm's commands on the first host; what it prints."""
        return self.hosts[0].run(command, self.environment, folder)

    @property
    def environment(self) -> Mapping[str, str]:
        """What Slurm's programs need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "HOME": os.environ["HOME"], "USER": "root"}

    def submit(self, *command: str, folder: Path) -> int:
        """Submits a job; its id."""
        said = self.run("sbatch", *command, folder=folder)
        return int(re.findall(r"Submitted batch job (\d+)", said)[0])

    def job(self, number: int) -> dict[str, str]:
        """What Slurm knows of a job."""
        said = self.run("scontrol", "show", "job", str(number), "--oneliner")
        return dict(item.partition("=")[::2] for item in said.split())

    def mails(self) -> str:
        """What was mailed."""
        path = self.folder / "mails"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))


def skip_where_absent() -> None:
    """Skips the test where it cannot be started."""
    skip_without(PROGRAMS, "slurm-wlm munge")


@contextlib.contextmanager
def started(folder: Path, names: Sequence[str], shared: Sequence[Path] = ()) -> Iterator[Slurm]:
    """Starts a Slurm on hosts of its own.

    Args:
        folder: An empty one.
        names: The hosts.
        shared: More folders that the hosts share.
    """
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    mailer(folder / "mail")
    (folder / "state").mkdir()
    with machines(names, folder, shared) as hosts:
        each = f"CPUs={CPUS} RealMemory=16384 Gres=gpu:{GPUS} State=UNKNOWN"
        nodes = [f"NodeName={host.name} NodeAddr={host.address} {each}" for host in hosts]
        config = CONFIG.format(head=f"{hosts[0].name}({hosts[0].address})", folder=folder, nodes="\n".join(nodes))
        (folder / "slurm.conf").write_text(config)
        for number in range(GPUS):
            os.mknod(folder / f"gpu{number}", stat.S_IFCHR, os.makedev(1, 3 + number))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
        cluster = Slurm(hosts, folder)
        with contextlib.ExitStack() as daemons:
            for host, command in _daemons(cluster):
                daemons.enter_context(_daemon(host, command, cluster))
            wait_until(lambda: _is_up(cluster), "Slurm's nodes", cluster.logs)
            yield cluster


def _daemons(cluster: Slurm) -> Iterator[tuple[Machine, list[str]]]:
    folder, head = cluster.folder, cluster.hosts[0]
    own = [f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid"]
    own += [f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
    yield head, ["munged", "--foreground", "--force", *own]
    yield head, ["slurmctld", "-D"]
    for host in cluster.hosts:
        (folder / host.name).mkdir()
        yield host, ["slurmd", "-D", "-N", host.name]


@contextlib.contextmanager
def _daemon(host: Machine, command: Sequence[str], cluster: Slurm) -> Iterator[None]:
    process = host.popen(["sh", "-c", 'exec "$@" > /dev/null 2>&1', "sh", *command], cluster.environment)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def _is_up(cluster: Slurm) -> bool:
    try:
        states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T").split()
    except AssertionError:
        return False
    return states == ["idle"] * len(cluster.hosts)
