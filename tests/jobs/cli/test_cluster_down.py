"""When `rayscribe cluster down` refuses, and what it says before it goes on."""

from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from jobs.clusters.managed import ray_up_cluster
from jobs.clusters.managed.cluster_record import LocalRecord, RayUpRecord, SshTarget, find_record
from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.model import Gang
from jobs.paths import default_database
from jobs.service import standalone
from tests.jobs.clusters.fake_cluster import FakeCluster
from tests.jobs.sample import sample_run


@pytest.fixture(autouse=True)
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose clusters are ended at once, and whose SSH reaches nobody."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    for name in ("RAYSCRIBE_DATABASE", "RAYSCRIBE_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ssh").write_text("#!/bin/sh\necho No route to host >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def down(record: RayUpRecord, **given: Any) -> None:
        record.forget()

    monkeypatch.setattr(ray_up_cluster, "down", down)


def submit(*addresses: str, **fields: object) -> None:
    """Queues a run on each."""
    ledger = Ledger.open(default_database())
    for number, address in enumerate(addresses):
        run = sample_run(id=f"run-{number}", uid=str(number).rjust(32, "0"), address=address, **fields)
        ledger.requests.add_run(run, text="submitted")
    ledger.close()


def test_a_cluster_that_does_not_say_whether_jobs_run_is_ended_by_force_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = SshTarget(host="10.0.0.1", user="ana")
    RayUpRecord(name="hosts", created_s=1.0, state="up", ssh=head).write()
    assert main(["cluster", "down", "hosts"]) == 22
    message = capsys.readouterr().err
    assert "not known whether jobs run on hosts" in message and "No route to host" in message and "--force" in message
    assert main(["cluster", "down", "hosts", "--force"]) == 0
    assert find_record("hosts") is None


def test_a_cluster_that_an_idle_stop_has_ended_is_shown_so_and_needs_no_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = SshTarget(host="10.0.0.1", user="ana")
    record = RayUpRecord(name="hosts", created_s=1.0, state="up", ssh=head)
    record.write()
    record.config_path.write_text("head_start_ray_commands: []\n")
    monkeypatch.setattr(ray_up_cluster, "head_of", lambda record: head)
    # The host responds, and nothing of Ray listens there.
    (tmp_path / "ssh").write_text('#!/bin/sh\ncase "$*" in *proc/net/tcp*) exit 1;; esac\nexit 255\n')
    assert main(["cluster", "status"]) == 0
    assert "hosts  ray-up  ended  Ray no longer runs on its head" in capsys.readouterr().out
    assert main(["cluster", "down", "hosts"]) == 0
    assert find_record("hosts") is None


def test_a_cluster_that_never_came_up_and_a_local_one_that_has_ended_need_no_force(tmp_path: Path) -> None:
    RayUpRecord(name="new", created_s=1.0).write()
    assert main(["cluster", "down", "new"]) == 0
    LocalRecord(name="old", created_s=1.0, state="up", folder=tmp_path / "gone").write()
    assert main(["cluster", "down", "old"]) == 0
    assert find_record("old") is None


def test_runs_that_have_not_ended_are_named_before_their_cluster_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:9"
    LocalRecord(name="old", created_s=1.0, state="up", folder=tmp_path / "gone", dashboard=url).write()
    submit("cluster://old", "cluster://other", url, "http://localhost:9/")
    assert main(["cluster", "down", "old"]) == 0
    said = capsys.readouterr().err
    assert "unfinished runs use old: run-0; once it is down, they wait" in said
    assert "rayscribe stop RUN" in said
    assert (
        f"unfinished runs use {url} instead of the name old: run-3, run-2; once it is down, they wait for Ray at"
        in said
    )
    assert "submit them again with --cluster" in said


def test_a_cluster_is_ended_whatever_is_wrong_with_the_limits_of_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalRecord(name="old", created_s=1.0, state="up", folder=tmp_path / "gone").write()
    monkeypatch.setenv("RAYSCRIBE_QUEUES", str(tmp_path / "none.yaml"))
    assert main(["cluster", "down", "old"]) == 0
    said = capsys.readouterr().err
    assert "the runs that use old are not known: " in said and "none.yaml: no such file" in said
    assert find_record("old") is None


def test_no_run_is_started_on_a_cluster_that_is_about_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalRecord(name="old", created_s=1.0, state="up", folder=tmp_path / "gone").write()
    fits = Gang(num_workers=1, resources_per_worker={"CPU": 1.0}, extra={})
    submit("cluster://old", gang=fits)
    monkeypatch.setattr(standalone, "Clusters", lambda: Clusters(connect=lambda _: FakeCluster()))
    assert main(["cluster", "down", "old"]) == 0
    ledger = Ledger.open(default_database())
    assert ledger.run("run-0").attempt == 0
    ledger.close()
