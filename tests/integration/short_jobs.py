"""Short jobs with a task.py of their own: they hold nothing, sleep, and write down when they ran."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.model import Run
from jobs.scheduler.limits import QueuesConfig
from jobs.service.package_store import PackageStore
from jobs.service.service import Service
from jobs.submission.run_request import RunRequest
from runtime_env.package import pack
from runtime_env.tree import list_tree
from trainers.config.loader import read_yaml
from trainers.config.overrides import apply_overrides, parse_override

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = "jobs/specs/whisper_micro.yaml"
TASK = """
import argparse, json, os, pathlib, re, signal, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--attempt", type=int)
given = parser.parse_args()
config = json.loads(os.environ["RAYSCRIBE_CONFIG"])
name = config["run"]["name"]
behavior = dict(item.split(":") for item in config["job"]["tags"])
records = pathlib.Path(config["run"]["storage_path"]) / "records"
records.mkdir(exist_ok=True)
start = time.time()
record = records / f"{name}-a{given.attempt}-{os.getpid()}.json"

def write(**more):
    part = record.with_suffix(".part")
    head = {"run": name, "attempt": given.attempt, "pid": os.getpid(), "start": start}
    part.write_text(json.dumps({**head, **more}))
    part.replace(record)

def stopped(number, frame):
    write(end=time.time(), stopped=True)
    sys.exit(143)

signal.signal(signal.SIGTERM, stopped)
write()
print(f"{name} attempt {given.attempt} begins", flush=True)
for line in range(int(behavior.get("lines", 0))):
    print(f"line {line}", flush=True)
    time.sleep(0.05)
slow = given.attempt <= int(behavior.get("slow_attempts", 1000))
time.sleep(int(behavior.get("ms", 0)) / 1000 if slow else 0)
write(end=time.time())
print(f"{name} attempt {given.attempt} is done", flush=True)
failing = given.attempt <= int(behavior.get("failing_attempts", 1000))
sys.exit(int(behavior.get("exit", 0)) if failing else 0)
"""


class Workspace:
    """A ledger, a store of packages, queues and a storage folder, all below one folder."""

    def __init__(
        self,
        folder: Path,
        address: str,
        queues: QueuesConfig,
        database: str | None = None,
        *,
        bucket: str | None = None,
    ):
        """Makes the folder's parts.

        Args:
            folder: For all of them.
            address: Of the cluster.
            queues: Limits of the queues.
            database: URL of the ledger. None: a file in the folder.
            bucket: URL under which runs of trees are stored. None: a part of the folder.
        """
        self.storage = folder / "runs"
        self.storage.mkdir(parents=True)
        self.runs = bucket or str(self.storage)
        self.folder, self.address = folder, address
        self.queues = queues.model_copy(update={"storages": [self.runs]})
        self.database = database or f"sqlite:///{folder / 'ledger.db'}"
        self.ledger = Ledger.open(self.database)
        self.packages = PackageStore(folder / "packages")
        self.clusters = Clusters()
        self.service = Service(self.ledger, self.clusters, self.packages, self.queues, user="ana", addresses=[address])
        self.queues_file = folder / "queues.yaml"
        self.queues_file.write_text(json.dumps(self.queues.model_dump(mode="json")))

    def close(self) -> None:
        """Lets go of the ledger."""
        self.ledger.close()

    def short(self, name: str, *sets: str, user: str = "ana", **behavior: Any) -> Run:
        """Submits a short job.

        Args:
            name: Its name.
            sets: Further overrides.
            user: Who submits it.
            behavior: `ms` to sleep, `exit` code, `lines` to print; `failing_attempts` fail, `slow_attempts` sleep.
        """
        tree = self.folder / "tree"
        if not tree.exists():
            (tree / "jobs/specs").mkdir(parents=True)
            (tree / "task.py").write_text(TASK)
            (tree / RECIPE).write_bytes((REPOSITORY / RECIPE).read_bytes())
        tags = json.dumps([f"{key}:{value}" for key, value in behavior.items()])
        return self.submit(tree, name, [*sets, f"job.tags={tags}"], user)

    def submit(self, tree: Path, name: str, sets: Sequence[str], user: str = "ana", recipe: str = RECIPE) -> Run:
        """Packs a tree and submits its recipe."""
        package = pack(list_tree(tree, []), self.packages.folder)
        overrides = [*sets, f"run.name={name}", f"run.storage_path={self.runs}"]
        config = apply_overrides(read_yaml(tree / recipe), [parse_override(item) for item in overrides])
        run_request = RunRequest(config=config, package=package.sha256)
        return self.service.as_user(user).submit(run_request, idempotency_key=uuid.uuid4().hex)

    def records(self) -> list[dict[str, Any]]:
        """What the short jobs wrote down."""
        return [json.loads(path.read_text()) for path in (self.storage / "records").glob("*.json")]
