from pathlib import Path
from typing import NoReturn

import pytest

from jobs.clusters.cluster import JobInfo
from jobs.clusters.managed.cluster_record import LocalRecord, RayUpRecord
from jobs.clusters.registry import MAX_PAUSE_S, PAUSE_S, Clusters, growth_of, has_release
from jobs.errors import ClusterError
from jobs.submission.ray_request import SubmitRequest, build_request
from runtime_env.own_code import VERSION
from tests.jobs.clusters.fake_cluster import FakeCluster
from tests.jobs.sample import sample_run
from tests.test_architecture import ROOT


class Slow(FakeCluster):
    """One that takes its time to say nothing."""

    def __init__(self, clock: list[float]):
        super().__init__()
        self.clock, self.hangs_s, self.asked = clock, 0.0, 0

    def job_infos(self) -> dict[str, JobInfo]:
        return self._hang()

    def log(self, submission_id: str, start: int, size: int, *, last_lines: int | None = None) -> bytes:
        return self._hang()

    def _hang(self) -> NoReturn:
        self.asked += 1
        self.clock[0] += self.hangs_s
        raise ClusterError("no answer")


def clusters_that_hang(hangs_s: float) -> tuple[Slow, Clusters]:
    """Clusters of which there is one, and its clock with it."""
    slow = Slow([0.0])
    slow.hangs_s = hangs_s
    return slow, Clusters(connect=lambda address: slow, clock=lambda: slow.clock[0])


@pytest.mark.parametrize(("hangs_s", "pause_s"), [(0.1, PAUSE_S), (10.0, 40.0), (300.0, MAX_PAUSE_S)])
def test_a_cluster_is_left_alone_the_longer_the_longer_it_hung(hangs_s: float, pause_s: float) -> None:
    slow, clusters = clusters_that_hang(hangs_s)
    for _ in range(3):
        with pytest.raises(ClusterError, match="no answer"):
            clusters.job_info("http://a", "sr-a1", "0")
    assert slow.asked == 1
    slow.clock[0] += pause_s - 0.01
    with pytest.raises(ClusterError):
        clusters.job_info("http://a", "sr-a1", "0")
    assert slow.asked == 1
    slow.clock[0] += 0.02
    with pytest.raises(ClusterError):
        clusters.job_info("http://a", "sr-a1", "0")
    assert slow.asked == 2


@pytest.mark.parametrize("address", ["http://a", "cluster://a"])
@pytest.mark.parametrize("hangs_s", [0.1, 30.0])
def test_a_log_that_is_missing_or_slow_pauses_no_cluster(hangs_s: float, address: str) -> None:
    slow, clusters = clusters_that_hang(hangs_s)
    for _ in range(3):
        with pytest.raises(ClusterError, match="no answer"):
            clusters.log(address, "sr-a1", 0, 1000)
    assert slow.asked == 3
    assert clusters.pending_bundles(address, "01000000") == []


FILE = """
provider: {type: aws}
head_node_type: head
available_node_types:
  head: {max_workers: 0, resources: {CPU: 2}}
  data: {max_workers: 4, resources: {CPU: 16}}
  spot: {max_workers: 8, resources: {CPU: 48, GPU: 4}}
  unknown: {max_workers: 8}
"""


def test_jobs_are_told_what_a_cluster_of_a_cloud_can_grow_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    record = RayUpRecord(name="speech", created_s=1.0)
    record.write()
    record.config_path.write_text(FILE)
    submitted: list[SubmitRequest] = []

    class Empty(FakeCluster):
        def submit(self, request: SubmitRequest) -> bool:
            submitted.append(request)
            return True

    clusters = Clusters({"cluster://speech": {"TPU": 2.0}}, connect=lambda address: Empty())
    largest = clusters.capacity("cluster://speech").size
    assert {name: largest[name] for name in ("CPU", "GPU", "TPU")} == {"CPU": 450.0, "GPU": 32.0, "TPU": 2.0}
    for address in ("cluster://speech", "http://127.0.0.1:8265"):
        clusters.submit(build_request(sample_run(address=address), 1, package="/packages/a.zip", resume="scratch"))
    told, other = (request.runtime_env["env_vars"] for request in submitted)
    assert told["RAYSCRIBE_GROWS_TO"] == "CPU=450,GPU=32,TPU=2"
    assert "RAYSCRIBE_GROWS_TO" not in other


@pytest.mark.parametrize("content", ["- a list", "available_node_types: {a: {max_workers: many}}", "{"])
def test_a_file_that_says_nothing_of_its_nodes_promises_none(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    record = RayUpRecord(name="speech", created_s=1.0)
    record.write()
    assert growth_of("cluster://speech") == {}
    record.config_path.write_text(content)
    assert growth_of("cluster://speech") == {}


def test_own_hosts_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    record = RayUpRecord(name="speech", created_s=1.0)
    record.write()
    record.config_path.write_text(FILE.replace("type: aws", "type: local"))
    assert growth_of("cluster://speech") == {}


def test_nodes_have_a_release_where_each_checks_its_own_or_this_machine_s_ray_was_started_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    own, hosts = LocalRecord(name="own", created_s=1.0, release=VERSION), RayUpRecord(name="hosts", created_s=1.0)
    own.write()
    LocalRecord(name="of-a-clone", created_s=1.0).write()
    hosts.write()
    assert not has_release("cluster://hosts", VERSION), "without its file"
    hosts.config_path.write_text((ROOT / "cluster_configs" / "local.yaml").read_text())
    known = {name: has_release(f"cluster://{name}", VERSION) for name in ("own", "of-a-clone", "hosts", "gone")}
    assert known == {"own": True, "of-a-clone": False, "hosts": True, "gone": False}
    assert not has_release("cluster://own", f"{VERSION}1") and not has_release("cluster://hosts", f"{VERSION}1")
    assert not has_release("http://127.0.0.1:8265", VERSION)
    hosts.config_path.write_text("setup_commands: []")
    assert not has_release("cluster://hosts", VERSION)
