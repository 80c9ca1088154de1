"""A ledger, a fake cluster, and controllers for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.model import Run
from jobs.scheduler.limits import QueuesConfig
from jobs.service.controller import Controller
from jobs.service.package_store import PackageStore
from runtime_env.package import pack
from runtime_env.tree import list_tree
from tests.integration.ledger_history import check_each_run
from tests.jobs.clusters.fake_cluster import FakeCluster
from tests.jobs.sample import sample_run

ADDRESS = "http://127.0.0.1:8265"
MAX_ROUNDS = 60
LOST_NODE = ("FAILED", 11, "the node of a worker was lost", "JOB_ENTRYPOINT_COMMAND_ERROR")


@dataclass
class ControllerHarness:
    """A ledger, a fake cluster, and a clock that advances by a minute per round."""

    folder: Path
    ledger: Ledger
    cluster: FakeCluster
    package: str
    now_s: float = 1_000_000.0
    points: list[str] = field(default_factory=list)

    def submit(self, name: str, **fields: object) -> Run:
        """Queues a run."""
        run = sample_run(
            **{
                "id": name,
                "uid": name.rjust(32, "0"),
                "address": ADDRESS,
                "package": self.package,
                "run_folder": str(self.folder / "runs" / name),
                "gang": sample_run().gang.model_copy(update={"resources_per_worker": {"CPU": 1.0}}),
                "submitted_s": self.now_s,
                "queued_s": self.now_s,
                "updated_s": self.now_s,
                **fields,
            }
        )
        return self.ledger.requests.add_run(run, text="submitted")

    def controller(self, hook: Callable[[str], None] | None = None) -> Controller:
        """A new controller, as after a restart of the service."""
        lease = self.ledger.lease("test", ttl_s=0.0)
        clusters = Clusters(connect=lambda _: self.cluster, clock=lambda: self.now_s)
        packages = PackageStore(self.folder / "packages")
        return Controller(
            self.ledger,
            clusters,
            packages,
            QueuesConfig(),
            lease=lease,
            clock=lambda: self.now_s,
            hook=hook or self.points.append,
        )

    def run_rounds(self, controller: Controller, until: Callable[[], bool] | None = None) -> None:
        """Runs rounds until all runs have ended, or the condition holds."""
        condition = until or self.all_ended
        for _ in range(MAX_ROUNDS):
            controller.round()
            self.now_s += 60.0
            if condition():
                return
        raise AssertionError([(run.id, run.state, run.reason) for run in self.ledger.runs(limit=500).runs])

    def all_ended(self) -> bool:
        """Whether all runs have ended."""
        return all(run.state.ended for run in self.ledger.runs(limit=500).runs)

    def check_history(self) -> None:
        """Checks that events, attempts and the cluster's jobs agree."""
        runs = self.ledger.runs(limit=500).runs
        attempts = {run.id: self.ledger.attempts(run.id) for run in runs}
        check_each_run(runs, self.ledger.events(None, limit=10_000), attempts)
        expected = [item.submission_id for items in attempts.values() for item in items]
        assert sorted(self.cluster.jobs) == sorted(expected)


@contextmanager
def harness_on(url: str, tmp_path: Path) -> Iterator[ControllerHarness]:
    """An empty ledger at a URL and a cluster with eight CPUs."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "task.py").write_text("print('hello')\n")
    package = pack(list_tree(tree, []), tmp_path / "packages")
    ledger = Ledger.open(url)
    yield ControllerHarness(tmp_path, ledger, FakeCluster(), package.sha256)
    ledger.close()
