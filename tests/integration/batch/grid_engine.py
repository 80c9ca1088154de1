"""A real Grid Engine for tests: the queue master and an execution daemon on a host and in a folder of their own."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.batch.machines import Machine, machines, mailer, skip_without, wait_until

PROGRAMS = ("sge_qmaster", "sge_execd", "qsub", "qconf", "qstat")
SHIPPED, PROGRAM_FOLDER = Path("/usr/share/gridengine"), Path("/usr/lib/gridengine")
HOST, SLOTS, GPUS = "gpu-host", 4, 4
BOOTSTRAP = """
admin_user root
default_domain none
ignore_fqdn false
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{root}/qmaster
binary_path /usr/sbin
qmaster_spool_dir {root}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
# In the place of what Debian's own configuration says.
SETTINGS = {"execd_spool_dir": "{root}/execd", "mailer": "{root}/mail", "min_uid": "0", "min_gid": "0"}
QUEUE = {"qname": "gpu.q", "hostlist": HOST, "slots": f"{SLOTS}", "pe_list": "mthread", "load_thresholds": "NONE"}
# Seconds; by default 15, and 40 for what hosts report.
SETTINGS |= {"load_report_time": "00:00:01"}
SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
HOST_ATTRIBUTES = f"""
hostname {HOST}
load_scaling NONE
complex_values gpu={GPUS},gpu_arch=ampere
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""
# What a site adds to be asked for GPUs: how many for each slot, and their kind.
COMPLEXES = "gpu gpu INT <= YES YES 0 0\ngpu_arch gpu_arch RESTRING == YES NO NONE 0\n"
PARALLEL_ENVIRONMENT = f"""
pe_name mthread
slots {SLOTS}
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""


@dataclass(frozen=True)
class GridEngine:
    """A Grid Engine whose daemons run.

    Attributes:
        host: Its only host.
        root: SGE_ROOT.
    """

    host: Machine
    root: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What Grid Engine's programs need."""
        own = {"SGE_ROOT": str(self.root), "SGE_CELL": "default", "SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        return {**own, "SGE_CLUSTER_NAME": "tests", "HOME": os.environ["HOME"], "USER": "root"}

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Runs one of Grid Engine's commands; what it prints."""
        return self.host.run(command, self.environment, folder)

    def submit(self, *command: str, folder: Path) -> int:
        """Submits a job; its id."""
        return int(self.run("qsub", "-terse", *command, folder=folder).split()[-1])

    def states(self) -> str:
        """Its jobs that have not ended."""
        return self.run("qstat", "-f", "-u", "*")

    def logs(self) -> str:
        """The last lines of the daemons' logs."""
        return "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in self.root.rglob("messages"))


def skip_where_absent() -> None:
    """Skips the test where it cannot be started."""
    skip_without(PROGRAMS, "gridengine-master gridengine-exec gridengine-client")


@contextlib.contextmanager
def started(root: Path, shared: Sequence[Path] = ()) -> Iterator[GridEngine]:
    """Starts a Grid Engine on a host of its own.

    Args:
        root: An empty folder.
        shared: More folders that the host needs.
    """
    common = root / "default" / "common"
    for folder in (common, root / "qmaster", root / "execd", root / "bin"):
        folder.mkdir(parents=True)
    (root / "util").symlink_to(SHIPPED / "util")
    (common / "bootstrap").write_text(BOOTSTRAP.lstrip().format(root=root))
    (common / "act_qmaster").write_text(f"{HOST}\n")
    mailer(root / "mail")
    with machines([HOST], root, shared) as (host,):
        engine = GridEngine(host, root)
        _initialize(engine)
        with contextlib.ExitStack() as daemons:
            daemons.enter_context(_daemon(engine, "sge_qmaster"))
            wait_until(lambda: _answers(engine), "Grid Engine's queue master", engine.logs)
            _configure(engine)
            daemons.enter_context(_daemon(engine, "sge_execd"))
            wait_until(lambda: " lx-amd64 " in engine.states(), "Grid Engine's execution daemon", engine.logs)
            yield engine


def _initialize(engine: GridEngine) -> None:
    """Writes the spool of a new cluster."""
    root = engine.root
    configuration = _changed((SHIPPED / "default-configuration").read_text(), SETTINGS)
    (root / "configuration").write_text(configuration.format(root=root))
    common = root / "default" / "common"
    engine.run(str(PROGRAM_FOLDER / "spoolinit"), "classic", "libspoolc", f"{common};{root}/qmaster", "init")
    resources = SHIPPED / "util" / "resources"
    for kind, what in (
        ("configuration", root / "configuration"),
        ("complexes", resources / "centry"),
        ("usersets", resources / "usersets"),
        ("managers", "root"),
    ):
        engine.run(str(PROGRAM_FOLDER / "spooldefaults"), kind, str(what))


def _configure(engine: GridEngine) -> None:
    """Adds the host, its GPUs, the parallel environment and a queue."""
    complexes = engine.run("qconf", "-sc") + COMPLEXES
    queue = _changed(engine.run("qconf", "-sq"), QUEUE)
    scheduler = _changed(engine.run("qconf", "-ssconf"), SCHEDULER)
    files = {"Mc": complexes, "Msconf": scheduler, "Ae": HOST_ATTRIBUTES, "Ap": PARALLEL_ENVIRONMENT, "Aq": queue}
    engine.run("qconf", "-as", HOST)
    for option, content in files.items():
        path = engine.root / f"configuration-{option}"
        path.write_text(content.lstrip())
        engine.run("qconf", f"-{option}", str(path))


def _changed(table: str, values: Mapping[str, str]) -> str:
    """A table of `name value` lines with other values."""
    lines = [line.partition(" ") for line in table.splitlines()]
    return "".join(f"{name} {values.get(name, value)}\n" for name, _, value in lines)


@contextlib.contextmanager
def _daemon(engine: GridEngine, name: str) -> Iterator[None]:
    environment = {**engine.environment, "SGE_ND": "1"}
    process = engine.host.popen(["sh", "-c", f"exec {name} > /dev/null 2>&1"], environment)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def _answers(engine: GridEngine) -> bool:
    try:
        engine.run("qconf", "-sql")
    except AssertionError as error:
        return "no cqueue list defined" in str(error)
    return True
