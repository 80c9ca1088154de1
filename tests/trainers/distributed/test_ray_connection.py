import contextlib
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.trainers.synthetic import config
from trainers.distributed import ray_connection
from trainers.distributed.local_ray import LocalRay
from trainers.distributed.ray_connection import (
    connected,
    lost_nodes,
    set_own_token,
    start_timeout_s,
)
from trainers.errors import ConfigError, ResourceError

VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and nothing of Ray's in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        # Set first, so that monkeypatch removes what the function sets.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_a_local_ray_gets_a_token_of_its_own(home: Path) -> None:
    set_own_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("name", VARIABLES)
def test_a_token_in_the_environment_stays_in_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "chosen")
    set_own_token()
    assert {each: os.environ[each] for each in VARIABLES if each in os.environ} == {name: "chosen"}


def test_a_token_file_of_the_user_stays_in_use(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("chosen")
    set_own_token()
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_job_says_how_many_cpus_of_the_machine_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr(ray_connection, "local_ray", lambda **arguments: started.update(arguments))
    monkeypatch.setattr(ray_connection, "enable_token_auth_by_default", lambda: None)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    two = config({"scaling.num_workers": 2})
    ray_connection._own_ray(two, lambda: None)
    assert started["num_cpus"] == 64
    for given, counted in (("5", 5), ("2", 3)):
        monkeypatch.setenv("RAYSCRIBE_CPUS", given)
        ray_connection._own_ray(two, lambda: None)
        assert started["num_cpus"] == counted, "two workers and Ray Data fit in any case"
    monkeypatch.setenv("RAYSCRIBE_CPUS", "many")
    with pytest.raises(ConfigError, match=r"RAYSCRIBE_CPUS must be a number of CPUs from 1 \(got 'many'\)"):
        ray_connection._own_ray(two, lambda: None)


@pytest.mark.parametrize("joined", [False, True])
def test_what_is_to_be_done_meanwhile_is_done_before_a_cluster_is_joined(
    joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: joined)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_connection, "_join", lambda address, quiet: calls.append(address))
    with connected(config({}), "10.0.0.1:6379", meanwhile=lambda: calls.append("meanwhile")):
        calls.append("in it")
    assert calls == ["meanwhile", *([] if joined else ["10.0.0.1:6379"]), "in it"]


class TestOwnRay:
    OWN = LocalRay("127.0.0.1:1", "http://127.0.0.1:2", Path("/tmp/rs-own"))

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The addresses that were joined in vain: a Ray of this machine does not answer three times."""
        tried: list[str] = []

        def init(*, address: str, **_: Any) -> None:
            tried.append(address)
            # Workers import from where the driver is, before anything else: in /tmp, what anybody has put there.
            assert Path.cwd() == Path("/")
            if len(tried) <= 3:
                raise ConnectionError("Failed to connect to Ray cluster")

        monkeypatch.setattr(ray, "init", init)
        monkeypatch.setattr(ray_connection, "_own_ray", lambda config, meanwhile: contextlib.nullcontext(self.OWN))
        monkeypatch.setattr(ray_connection, "POLL_S", 0.001)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        return tried

    def test_one_that_answers_late_is_waited_for(self, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_connection, "ray_lives", lambda folder: True)
        here = Path.cwd()
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "token")
        with connected(config({})):
            assert calls == [self.OWN.address] * 4
            assert Path.cwd() == here
            assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(here / "token")

    @pytest.mark.parametrize(("lives", "words"), [(True, r"has not answered in \d+ s"), (False, "has ended")])
    def test_one_that_never_answers_is_told_from_another_s_cluster(
        self, lives: bool, words: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_connection, "ray_lives", lambda folder: lives)
        monkeypatch.setattr(ray_connection, "START_TIMEOUT_S", 0.0)
        with (
            pytest.raises(
                ResourceError, match=rf"Ray that was started on this machine for this command {words}"
            ) as error,
            connected(config({})),
        ):
            pass
        assert "/tmp/rs-own/ray/session_latest/logs" in str(error.value)
        assert "--address" not in str(error.value)
        assert len(calls) == 1


def test_a_fixed_number_of_workers_waits_for_a_node_that_an_autoscaler_adds() -> None:
    elastic = config({"scaling.num_workers": {"min": 1, "max": 2}, "training.global_batch_size": 8})
    assert float(start_timeout_s(config({"scaling.num_workers": 2}))) >= 600
    assert float(start_timeout_s(elastic)) < 60, "a plan may name nodes that are gone"


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The cluster's own list of its nodes; looks at it follow each other at once."""
    listed: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "nodes", lambda: listed)
    monkeypatch.setattr(ray_connection, "NODE_PROBE_S", 0.01)
    return listed


def node_at(port: int, name: str) -> dict[str, Any]:
    return {
        "NodeID": name,
        "Alive": True,
        "Resources": {},
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerPort": port,
    }


def test_nodes_that_respond_are_not_waited_for(nodes: list[dict[str, Any]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        nodes += [node_at(here.getsockname()[1], name) for name in ("a", "b")]
        assert lost_nodes({"a", "b"}, wait_s=math.inf) == 0


def test_a_node_that_does_not_respond_is_lost_once_the_cluster_says_so(
    nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.1", 0)) as gone:
        nodes += [node_at(here.getsockname()[1], "a"), node_at(gone.getsockname()[1], "b")]
    looks = iter(range(100))

    def sleep(seconds: float) -> None:
        nodes[1]["Alive"] = next(looks) < 50

    monkeypatch.setattr(time, "sleep", sleep)
    assert lost_nodes({"a", "b"}, wait_s=math.inf) == 1
    assert next(looks) == 51
    assert lost_nodes(set(), wait_s=math.inf) == 0
