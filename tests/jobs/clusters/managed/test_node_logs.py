"""Where the logs of a cluster's nodes go."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.clusters.managed import node_logs
from jobs.clusters.managed.cluster_endpoint import ClusterEndpoint
from jobs.clusters.managed.node_logs import archive_logs, target_of

ENDPOINT = ClusterEndpoint("http://127.0.0.1:9", None, on_this_machine=True)


@pytest.mark.parametrize("name", ["raylet.out", "/raylet.out", "//raylet.out", "./raylet.out"])
def test_a_log_goes_below_the_folder_of_its_node(tmp_path: Path, name: str) -> None:
    assert target_of(tmp_path, "10.0.0.1-ab", name) == tmp_path / "10.0.0.1-ab" / "raylet.out"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("n", "../x"),
        ("n", "/../../x"),
        ("n", "a/../.."),
        ("n", "/"),
        ("n", ""),
        ("n", "x\0y"),
        ("n", "\x1b[2J"),
        ("n", "x\ny"),
        ("n", "\ud800"),
        ("../n", "x"),
        ("/etc", "x"),
        ("..", "x"),
        (".", "x"),
        ("", "x"),
        ("a\nb", "x"),
    ],
)
def test_a_log_that_leads_elsewhere_or_does_not_print_is_left(tmp_path: Path, address: str, name: str) -> None:
    assert target_of(tmp_path / "logs", address, name) is None


def test_a_link_in_the_archive_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "logs/n").mkdir(parents=True)
    (tmp_path / "logs/n/out").symlink_to("/etc")
    assert target_of(tmp_path / "logs", "n", "out/passwd") is None


class Log(contextlib.nullcontext[None]):
    """A response with a log's content."""

    def iter_content(self, size: int) -> list[bytes]:
        """In two chunks."""
        return [b"its ", b"lines"]


class Dashboard:
    """Stands in for the calls of a cluster's dashboard.

    Attributes:
        asked: Nodes that were asked for the names of their logs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any]):
        """Gives each node the logs `files`."""
        self.files, self.asked = files, list[str]()
        nodes = [SimpleNamespace(state="ALIVE", node_id=name, node_ip=name) for name in ("a", "b", "c")]
        monkeypatch.setattr(node_logs, "StateClient", lambda *given: SimpleNamespace(all=lambda kind: nodes))
        monkeypatch.setattr(node_logs, "_get", self.get)

    def get(self, endpoint: ClusterEndpoint, path: str, query: dict[str, Any], **given: Any) -> Any:
        """The names of a node's logs, or the content of one."""
        if path != node_logs.LOGS:
            return Log()
        self.asked.append(query["node_id"])
        return SimpleNamespace(json=lambda: {"data": {"result": self.files}})


def test_what_is_left_is_said_without_what_a_terminal_would_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Dashboard(monkeypatch, {"others": ["../../.bashrc", "\x1b]0;owned\x07", "\ud800"]})
    said: list[str] = []
    assert archive_logs(ENDPOINT, tmp_path / "logs", said.append) == 0
    assert len(said) == 5 and all(line.isprintable() for line in said)
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["MISSED.txt"]
    assert (tmp_path / "logs/MISSED.txt").read_text().count("not a file of the log folder") == 9


def test_no_file_that_is_there_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Dashboard(monkeypatch, {"others": ["raylet.out"]})
    mine = tmp_path / "logs/a-a/raylet.out"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert archive_logs(ENDPOINT, tmp_path / "logs", print) == 2
    assert mine.read_text() == "mine"
    assert (tmp_path / "logs/b-b/raylet.out").read_text() == "its lines"
    assert "a: raylet.out" in (tmp_path / "logs/MISSED.txt").read_text()


@pytest.mark.parametrize("files", [{"others": [1]}, {"others": None}, "odd"])
def test_a_node_that_lists_no_names_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Any) -> None:
    Dashboard(monkeypatch, files)
    assert archive_logs(ENDPOINT, tmp_path / "logs", print) == 0
    assert len((tmp_path / "logs/MISSED.txt").read_text().splitlines()) == 3


def test_nodes_are_not_asked_for_their_logs_once_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = Dashboard(monkeypatch, {})
    now = iter([0.0, 1.0, 11.0])
    monkeypatch.setattr(node_logs, "time", SimpleNamespace(monotonic=lambda: next(now)))
    assert archive_logs(ENDPOINT, tmp_path / "logs", print, timeout_s=10.0) == 0
    assert dashboard.asked == ["a"]
    assert "b and what follows" in (tmp_path / "logs/MISSED.txt").read_text()
