"""What users ask for, behind whatever carries it."""

from pathlib import Path

import pytest

from jobs.clusters.fake_cluster import FakeCluster
from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.scheduler.limits import QueuesConfig
from jobs.service.package_store import PackageStore
from jobs.service.service import Service
from jobs.submission.run_request import RunRequest
from runtime_env.package import pack
from runtime_env.tree import list_tree
from tests.jobs.sample import CONTENT
from trainers.errors import ResourceError


def test_a_request_that_is_repeated_is_answered_whatever_became_of_the_cluster(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "task.py").write_text("print('hello')\n")
    package = pack(list_tree(tree, []), tmp_path / "packages")
    cluster, ledger = FakeCluster(), Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    service = Service(
        ledger,
        Clusters(connect=lambda _: cluster),
        PackageStore(tmp_path / "packages"),
        QueuesConfig(),
        user="ana",
        addresses=["http://head:8265"],
    )
    content = {**CONTENT, "scaling": {"num_workers": 2, "resources_per_worker": {"CPU": 2}}}
    run_request = RunRequest(config=content, package=package.sha256)
    first = service.submit(run_request, idempotency_key="k")
    cluster.cpus = 1.0
    assert service.submit(run_request, idempotency_key="k").uid == first.uid
    with pytest.raises(ResourceError):
        service.submit(
            run_request.model_copy(update={"config": {**content, "run": {**CONTENT["run"], "name": "other"}}})
        )
    ledger.close()
