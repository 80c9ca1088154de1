import time
from pathlib import Path

import pytest

from cluster_configs.providers.azure import Azure
from cluster_configs.providers.gcp import Gcp
from cluster_configs.providers.provider import Notice
from tests.cluster_configs.providers.metadata_server import MACHINE, metadata_server
from trainers.distributed import preemption_agent
from trainers.distributed.preemption_agent import Agent, Raylet, main, raylets_here


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
        agent.run()

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
        assert "cannot be drained yet: head:6379 does not respond" in lines[1]
        assert "cc is drained" in lines[2]

    def test_without_a_cloud_it_says_so_and_ends(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(preemption_agent, "START_TIMEOUT_S", 0.0)
        with metadata_server("aws") as server:
            url = server.url
        assert main(["--metadata-url", url]) == 1
        assert f"no cloud's metadata service responds at {url}" in capsys.readouterr().err
