"""What users ask for, behind whatever carries it."""

import re
import zipfile
from pathlib import Path

import pytest

from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.scheduler.limits import QueuesConfig
from jobs.service.package_store import PackageStore
from jobs.service.service import Service
from jobs.submission.run_request import RunRequest
from runtime_env.package import pack
from runtime_env.tree import list_tree
from tests.jobs.clusters.fake_cluster import FakeCluster
from tests.jobs.sample import CONTENT
from trainers.errors import ConfigError, ResourceError


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


@pytest.mark.parametrize(("trainer", "entry"), [("huggingface", True), ("huggingface", False), ("script", True)])
def test_a_run_that_its_package_does_not_start_is_frozen_with_the_code_that_runs_here(
    trainer: str, entry: bool, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ("task.py" if entry else "my_metrics.py")).write_text("print('hello')\n")
    packages = PackageStore(tmp_path / "packages")
    package = pack(list_tree(tree, []), packages.folder, needed=None)
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    service = Service(
        ledger,
        Clusters(connect=lambda _: FakeCluster()),
        packages,
        QueuesConfig(),
        user="ana",
        addresses=["http://head:8265"],
    )
    program = {"trainer": "script", "script": {"command": ["task.py"]}, "run": CONTENT["run"]}
    content = {**(CONTENT if trainer == "huggingface" else program), "scaling": {"num_workers": 1}}
    run = service.submit(RunRequest(config=content, package=package.sha256))
    assert ledger.run(run.id).code == run.code
    starts_itself = entry and trainer == "huggingface"
    assert (run.code is None, packages.code_of(run) is None) == (starts_itself, starts_itself)
    if run.code is not None:
        with zipfile.ZipFile(str(packages.code_of(run))) as code:
            assert {"rayscribe.py", "trainers/main.py", "jobs/specs/whisper_micro.yaml"} <= set(code.namelist())
        assert packages.put_own_code() == run.code, "the same code is the same package"
    ledger.close()


STORAGES = QueuesConfig(
    storages=["/mnt/runs/", "s3://speech", "gs://speech", "az://speech"], s3_endpoints=["http://minio:9000/"]
)


@pytest.mark.parametrize(
    ("run", "refused"),
    [
        ({"storage_path": "/mnt/runs"}, ""),
        ({"storage_path": "/mnt/runs/ana"}, ""),
        ({"storage_path": "s3://speech/ana", "s3_endpoint_url": "http://minio:9000"}, ""),
        ({"storage_path": "/mnt/runs2"}, "run.storage_path: /mnt/runs2/sr is not in a storage"),
        ({"storage_path": "/mnt/runs/../../etc"}, "run.storage_path: "),
        ({"storage_path": "s3://speech2/a"}, "run.storage_path: "),
        (
            {"storage_path": "s3://speech/a", "s3_endpoint_url": "http://169.254.169.254"},
            "run.s3_endpoint_url: http://169.254.169.254 is not a server of this service",
        ),
        (
            {"storage_path": "s3://speech/a", "s3_buckets": {"speech": {"endpoint_url": "http://169.254.169.254"}}},
            "run.s3_buckets.speech.endpoint_url: http://169.254.169.254 is not a server of this service",
        ),
        (
            {"storage_path": "az://speech/a", "az_account": "other", "az_endpoint_url": "http://169.254.169.254"},
            "run.az_endpoint_url: http://169.254.169.254 is not a server of this service",
        ),
        ({"storage_path": "az://speech/a", "az_account": "other"}, "run.az_account: the service would also use other"),
        ({"storage_path": "gs://speech/a", "gs_endpoint_url": "http://minio:9000"}, ""),
        ({"storage_path": "s3://speech/a", "s3_profile": "admin"}, "run.s3_profile: the service would also use admin"),
        (
            {"storage_path": "s3://speech/a", "s3_buckets": {"speech": {"profile": "admin"}}},
            "run.s3_buckets.speech.profile: the service would also use admin",
        ),
        ({"storage_path": "s3://speech/a", "s3_region": "eu-west-1", "s3_anonymous": True}, ""),
    ],
)
def test_users_have_run_folders_in_listed_storages_and_the_service_s_own_user_anywhere(
    tmp_path: Path, run: dict[str, object], refused: str
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    packages = PackageStore(tmp_path / "packages")
    sha256 = "0" * 64
    packages.folder.mkdir()
    with zipfile.ZipFile(packages.path(sha256), "w") as package:
        package.writestr("task.py", "print('trains')")
    service = Service(
        ledger, Clusters(connect=lambda _: FakeCluster()), packages, STORAGES, user="root", addresses=["http://h:8265"]
    )
    config = {**CONTENT, "run": {"name": "sr", **run}, "scaling": {"num_workers": 1}}
    run_request = RunRequest(config=config, package=sha256)
    if refused:
        with pytest.raises(ConfigError, match=re.escape(refused)):
            service.as_user("ana").submit(run_request)
        service.submit(run_request)
    else:
        service.as_user("ana").submit(run_request)
    ledger.close()
