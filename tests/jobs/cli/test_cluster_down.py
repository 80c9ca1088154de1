"""When `rayscribe cluster down` refuses."""

from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from jobs.clusters.remembered import up_down
from jobs.clusters.remembered.cluster_record import ClusterRecord, SshTarget, find_record


@pytest.fixture(autouse=True)
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose clusters are ended at once, and whose SSH reaches nobody."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    (tmp_path / "ssh").write_text("#!/bin/sh\necho No route to host >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def down(record: ClusterRecord, **given: Any) -> None:
        record.forget()

    monkeypatch.setattr(up_down, "down", down)


def test_a_cluster_that_does_not_say_whether_jobs_run_is_ended_by_force_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = SshTarget(host="10.0.0.1", user="ana")
    ClusterRecord(name="hosts", kind="ray-up", created_s=1.0, state="up", ssh=head).write()
    assert main(["cluster", "down", "hosts"]) == 22
    message = capsys.readouterr().err
    assert "not known whether jobs run on hosts" in message and "No route to host" in message and "--force" in message
    assert main(["cluster", "down", "hosts", "--force"]) == 0
    assert find_record("hosts") is None


def test_a_cluster_that_never_came_up_and_a_local_one_that_has_ended_need_no_force(tmp_path: Path) -> None:
    ClusterRecord(name="new", kind="ray-up", created_s=1.0).write()
    assert main(["cluster", "down", "new"]) == 0
    ClusterRecord(name="old", kind="local", created_s=1.0, state="up", folder=tmp_path / "gone").write()
    assert main(["cluster", "down", "old"]) == 0
    assert find_record("old") is None
