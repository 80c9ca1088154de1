import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cluster_configs.providers.aws import Aws
from cluster_configs.providers.azure import Azure
from cluster_configs.providers.gcp import Gcp
from cluster_configs.providers.metadata_service import Cloud, Notice
from tests.trainers.distributed.metadata_server import MACHINE, MetadataServer, metadata_server
from trainers.distributed import preemption_agent
from trainers.distributed.preemption_agent import CLOUDS, Agent, Raylet, find_cloud, main, raylets_here

NOW_S = 1_000_000.0


@pytest.fixture(params=sorted(CLOUDS))
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    # Metadata services are asked directly, whatever proxies the machine has.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metadata_server(request.param) as found:
        yield found


class TestClouds:
    def test_each_is_found_by_its_metadata_service(self, server: MetadataServer) -> None:
        found = find_cloud(server.url)
        assert found is not None and type(found) is CLOUDS[server.cloud]

    def test_there_is_no_notice_before_the_cloud_gives_one(self, server: MetadataServer) -> None:
        cloud: Cloud = CLOUDS[server.cloud](server.url)
        assert cloud.notice(NOW_S) is None
        server.announce()
        notice = cloud.notice(NOW_S)
        assert notice is not None and notice.text.startswith(cloud.name)

    def test_nobody_answers_where_there_is_no_cloud(self) -> None:
        with metadata_server("aws") as server:
            url = server.url
        assert find_cloud(url) is None

    def test_a_service_that_fails_is_an_error_and_no_notice(self, server: MetadataServer) -> None:
        cloud: Cloud = CLOUDS[server.cloud](server.url)
        assert cloud.is_here()
        server.answers = dict.fromkeys(server.answers, "<html>busy</html>")
        server.answers["/latest/meta-data/spot/instance-action"] = "<html>busy</html>"
        if server.cloud == "gcp":
            server.answers.clear()
        with pytest.raises(OSError, match=cloud.name):
            cloud.notice(NOW_S)


class TestAws:
    def test_the_time_of_the_interruption_is_read(self) -> None:
        with metadata_server("aws") as server:
            server.announce("2026-11-22T08:22:00Z")
            notice = Aws(server.url).notice(NOW_S)
        assert notice == Notice(
            "AWS: the instance is to terminate", datetime(2026, 11, 22, 8, 22, tzinfo=UTC).timestamp()
        )

    def test_one_token_serves_many_questions_until_it_expires(self) -> None:
        with metadata_server("aws") as server:
            cloud = Aws(server.url)
            assert cloud.is_here() and cloud.notice(NOW_S) is None and cloud.notice(NOW_S) is None
            assert [item for item in server.asked if item.startswith("PUT")] == ["PUT /latest/api/token"]
            server.token = "second"
            server.announce()
            assert cloud.notice(NOW_S) is not None
            assert len([item for item in server.asked if item.startswith("PUT")]) == 2

    def test_a_recommendation_to_rebalance_is_no_notice(self) -> None:
        with metadata_server("aws") as server:
            server.answers["/latest/meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-22T08:00Z"}'
            assert Aws(server.url).notice(NOW_S) is None


class TestGcp:
    @pytest.mark.parametrize(
        ("event", "left_s"),
        [("NONE", None), ("MIGRATE_ON_HOST_MAINTENANCE", None), ("TERMINATE_ON_HOST_MAINTENANCE", 60.0)],
    )
    def test_only_maintenance_that_ends_the_machine_is_a_notice(self, event: str, left_s: float | None) -> None:
        with metadata_server("gcp") as server:
            server.answers["/computeMetadata/v1/instance/maintenance-event"] = event
            notice = Gcp(server.url).notice(NOW_S)
        assert (notice.at_s - NOW_S if notice is not None else None) == left_s

    def test_a_preempted_machine_has_half_a_minute(self) -> None:
        with metadata_server("gcp") as server:
            server.announce()
            assert Gcp(server.url).notice(NOW_S) == Notice("GCP: the instance is preempted", NOW_S + 30)


class TestAzure:
    def test_events_of_other_machines_and_short_freezes_are_no_notices(self) -> None:
        with metadata_server("azure") as server:
            server.events(
                {"EventType": "Preempt", "Resources": ["gpu-1"], "NotBefore": ""},
                {"EventType": "Freeze", "Resources": [MACHINE], "NotBefore": ""},
            )
            assert Azure(server.url).notice(NOW_S) is None

    def test_the_first_of_its_events_counts(self) -> None:
        with metadata_server("azure") as server:
            server.events(
                {"EventType": "Redeploy", "Resources": [MACHINE], "NotBefore": "Sun, 22 Nov 2026 08:30:00 GMT"},
                {"EventType": "Preempt", "Resources": [MACHINE], "NotBefore": "Sun, 22 Nov 2026 08:22:00 GMT"},
            )
            notice = Azure(server.url).notice(NOW_S)
        assert notice == Notice("Azure: Preempt", datetime(2026, 11, 22, 8, 22, tzinfo=UTC).timestamp())


class TestRaylets:
    def process(self, root: Path, number: int, line: str, *, network: str = "net:[1]", variables: str = "") -> None:
        folder = root / str(number)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns" / "net").symlink_to(network)
        (folder / "cmdline").write_text(line)
        (folder / "environ").write_text(variables)

    def test_those_of_this_network_are_found_with_their_cluster_and_token(self, tmp_path: Path) -> None:
        line = "\0".join(
            [
                "/ray/core/src/ray/raylet/raylet",
                "--node_id={}",
                "--python_worker_command=python --gcs-address=10.0.0.1:6379",
            ]
        )
        self.process(tmp_path, 11, line.format("aa"), variables="HOME=/root\0RAY_AUTH_MODE=token\0")
        self.process(tmp_path, 12, line.format("bb"), network="net:[2]")
        self.process(tmp_path, 13, "python\0--node_id=cc\0--gcs-address=10.0.0.1:6379")
        (tmp_path / "self").symlink_to("11")
        assert list(raylets_here(tmp_path)) == [Raylet("aa", "10.0.0.1:6379", {"RAY_AUTH_MODE": "token"})]


class FakeRay:
    """Raylets of this machine, and a head that may be away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.raylets = [Raylet("aa", "head:6379", {}), Raylet("bb", "head:6379", {})]
        self.drained: list[str] = []
        self.problem: str | None = None
        monkeypatch.setattr(preemption_agent, "raylets_here", lambda: iter(self.raylets))
        monkeypatch.setattr(preemption_agent, "drain", self.drain)

    def drain(self, raylet: Raylet, notice: Notice) -> str | None:
        self.drained += [] if self.problem else [raylet.node_id]
        return self.problem


class TestAgent:
    @pytest.fixture
    def fake_ray(self, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
        return FakeRay(monkeypatch)

    def watch(self, agent: Agent, fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch, *steps: object) -> None:
        """Runs the agent; between two looks, one step is taken, and after the last the raylets end."""
        left = list(steps)

        def sleep(seconds: float) -> None:
            if left:
                step = left.pop(0)
                assert callable(step)
                step()
            else:
                fake_ray.raylets = []

        monkeypatch.setattr(time, "sleep", sleep)
        agent.run(1.0)

    def test_each_raylet_is_drained_once_and_it_is_said_once(
        self, fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines: list[str] = []
        with metadata_server("gcp") as server:
            agent = Agent(Gcp(server.url), log=lines.append)
            self.watch(agent, fake_ray, monkeypatch, server.announce, list, list)
        assert fake_ray.drained == ["aa", "bb"]
        assert [line.partition(": Ray node ")[2] for line in lines] == ["aa is drained", "bb is drained"]

    def test_only_the_named_node_is_drained(self, fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
        with metadata_server("gcp") as server:
            server.announce()
            self.watch(Agent(Gcp(server.url), "bb", log=lambda line: None), fake_ray, monkeypatch, list)
        assert fake_ray.drained == ["bb"]

    def test_it_survives_a_head_and_a_metadata_service_that_are_away(
        self, fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_ray.raylets = fake_ray.raylets[:1]
        fake_ray.problem = "head:6379 does not respond in 30 s"
        lines: list[str] = []

        def restart() -> None:
            # With the head, raylets get new ids.
            fake_ray.problem, fake_ray.raylets = None, [Raylet("cc", "head:6379", {})]

        with metadata_server("azure") as server:
            server.answers.clear()

            def come() -> None:
                server.answers["/metadata/instance/compute/name?api-version=2021-02-01&format=text"] = MACHINE
                server.announce()

            agent = Agent(Azure(server.url), log=lines.append)
            self.watch(agent, fake_ray, monkeypatch, list, come, list, list, restart)
        assert fake_ray.drained == ["cc"]
        assert len(lines) == 3
        assert "no answer from the metadata service" in lines[0]
        assert "cannot be drained, yet: head:6379 does not respond" in lines[1]
        assert "cc is drained" in lines[2]

    def test_without_a_cloud_it_says_so_and_ends(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(preemption_agent, "START_TIMEOUT_S", 0.0)
        with metadata_server("aws") as server:
            url = server.url
        assert main(["--metadata-url", url]) == 1
        assert f"no cloud's metadata service responds at {url}" in capsys.readouterr().err

    def test_a_wrong_interval_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["--poll-s", "0"])
        assert ended.value.code == 2
        assert "--poll-s 0: give seconds above 0" in capsys.readouterr().err
