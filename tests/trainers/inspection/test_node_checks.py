import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.trainers.data.sources.archives.made_archives import write_tar
from tests.trainers.inspection.checking import subject_of
from trainers.config.parts.scaling_part import AcceleratorName, ScalingPart
from trainers.config.secrets import REFERENCES
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError, ResourceError
from trainers.findings import Finding, ok, problem, run_check, skipped
from trainers.inspection import node_checks
from trainers.inspection.node_checks import (
    CHECKS,
    ProbeTask,
    Report,
    device_on,
    judge_code,
    locations_of,
    marked,
    merged,
    refuse_unshared_folders,
    reports_of,
    run_probe,
)


def task(folder: Path, *, locations: tuple[str, ...] = (), device: AcceleratorName | None = "cpu") -> ProbeTask:
    """An errand to this machine, as to a node."""
    storage = folder / "runs"
    storage.mkdir()
    return ProbeTask({"run.storage_path": str(storage)}, "", StorageOptions(), locations, device)


@pytest.mark.parametrize(
    ("resources", "labels", "expected"),
    [
        ({"GPU": 2.0}, {"pool": "a"}, "rocm"),
        ({}, {"pool": "a"}, "cpu"),
        ({"GPU": 2.0}, {"pool": "b"}, None),
    ],
)
def test_torch_is_to_fit_what_workers_have_on_the_node(
    resources: dict[str, float], labels: dict[str, str], expected: str | None
) -> None:
    scaling = ScalingPart(accelerator="rocm", label_selector={"pool": "a"})
    assert device_on({"Resources": resources, "Labels": labels}, scaling) == expected


def test_a_node_without_workers_needs_no_torch_that_fits(tmp_path: Path) -> None:
    assert "node_torch_build" not in run_probe(task(tmp_path, device=None), "10.0.0.2").findings


def only(notes: Sequence[Finding]) -> tuple[str, str]:
    assert len(notes) == 1, notes
    return notes[0].level.value, notes[0].text


class TestOnANode:
    def test_all_is_well(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        recording = tmp_path / "a.wav"
        recording.write_bytes(b"RIFF")
        report = run_probe(task(tmp_path, locations=(str(recording),)), "10.0.0.2")
        assert {only(notes)[0] for notes in report.findings.values()} == {"ok"}
        text = only(report.findings["node_versions"])[1]
        assert "python 3." in text and "ray 2." in text

    def test_a_storage_of_its_own_is_found_by_the_driver_s_mark(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def asked(nodes: object, question: Callable[..., object], arguments: Callable[..., Any], _: float) -> Any:
            folders, marker, options = arguments(None, "10.0.0.2")
            return {"10.0.0.2": question(folders, marker, options), "10.0.0.3": [*folders]}, {}

        monkeypatch.setattr(node_checks, "other_nodes", lambda *_: [{}])
        monkeypatch.setattr(node_checks, "ask", asked)
        config = subject_of(tmp_path).config
        with pytest.raises(ConfigError, match=r"writes there is not seen on 10\.0\.0\.3: mount the same"):
            refuse_unshared_folders(config, {})
        assert [*(tmp_path / "runs").iterdir()] == [], "the mark is removed"

    def test_a_storage_that_it_cannot_write(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        folders = {"data.cache_dir": str(tmp_path / "file" / "runs")}
        broken = ProbeTask(folders, "marker", StorageOptions(), (), "cpu")
        level, text = only(run_probe(broken, "10.0.0.2").findings["node_storage"])
        assert level == "error"
        assert text.startswith("data.cache_dir: ") and "there is a file where a folder is needed" in text

    @pytest.mark.parametrize("kind", ["folder", "bucket"])
    @pytest.mark.integration
    def test_one_that_it_can_write_and_is_another_than_the_driver_s(
        self, kind: str, tmp_path: Path, s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(node_checks, "FILE_VISIBILITY_TIMEOUT_S", 0.0)
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        folders = {"run.storage_path": {"folder": str(tmp_path), "bucket": f"{s3_bucket}/runs"}[kind]}
        with marked(folders, StorageOptions()) as marker:
            same = ProbeTask(folders, marker, StorageOptions(), (), None)
            assert only(run_probe(same, "10.0.0.2").findings["node_storage"])[0] == "ok"
        level, text = only(run_probe(same, "10.0.0.2").findings["node_storage"])
        assert level == "error"
        fix = {"folder": "mount the same file system", "bucket": "reach the same service"}[kind]
        assert text.startswith(f"run.storage_path: {folders['run.storage_path']} is not the same for all nodes")
        assert f"is not seen here: {fix}" in text

    def test_data_that_it_cannot_read(self, tmp_path: Path) -> None:
        gone = (str(tmp_path / "train.csv"), str(tmp_path / "a.wav"))
        level, text = only(run_probe(task(tmp_path, locations=gone), "10.0.0.2").findings["node_data"])
        assert level == "error"
        assert f"2 of 2 files cannot be read ({gone[0]}: no such file, " in text

    @pytest.mark.parametrize(
        ("modes", "level"),
        [
            ((0o755, 0o777, 0o755), "warning"),
            ((0o755, 0o755, 0o777), "warning"),
            ((0o700, 0o777, 0o777), "ok"),
            ((0o1777, 0o755, 0o755), "ok"),
        ],
    )
    def test_code_that_another_user_could_replace(self, modes: tuple[int, int, int], level: str) -> None:
        # As Ray leaves it: its folder, that of all packages, that of one. Pytest's own folder is closed to others.
        with TemporaryDirectory(dir="/tmp") as name:
            folders = [Path(name) / "ray", Path(name) / "ray/files", Path(name) / "ray/files/package"]
            Path(name).chmod(0o755)
            for folder, mode in zip(folders, modes, strict=True):
                folder.mkdir()
                folder.chmod(mode)
            finding = judge_code(folders[-1])
        assert finding.level.value == level
        assert level == "ok" or str(folders[modes.index(0o777)]) in finding.text

    def test_gpus_that_it_does_not_have(self, tmp_path: Path) -> None:
        note = run_probe(task(tmp_path, device="auto"), "10.0.0.2").findings["node_torch_build"]
        assert only(note)[1].startswith("10.0.0.2 has ")

    def test_secrets_are_looked_for_and_never_shown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "token").write_text("the value of a secret")
        (tmp_path / "empty").touch()
        references = {
            "HF_TOKEN": {"file": str(tmp_path / "token")},
            "WANDB_API_KEY": {"env": "TEAM_KEY"},
            "EMPTY": {"file": str(tmp_path / "empty")},
            "GONE": {"file": "/nowhere/token"},
        }
        monkeypatch.setenv(REFERENCES, json.dumps(references))
        monkeypatch.delenv("TEAM_KEY", raising=False)
        level, text = only(run_probe(task(tmp_path), "10.0.0.2").findings["node_secrets"])
        assert level == "error"
        assert "job.runtime_env.secrets.WANDB_API_KEY refers to the variable TEAM_KEY, which is not set" in text
        assert "job.runtime_env.secrets.GONE refers to /nowhere/token, which cannot be read on this node" in text
        assert "job.runtime_env.secrets.EMPTY refers to" in text
        assert "HF_TOKEN" not in text
        assert "the value of a secret" not in text
        monkeypatch.setenv("TEAM_KEY", "x")
        monkeypatch.setenv(REFERENCES, json.dumps({name: references[name] for name in ("HF_TOKEN", "WANDB_API_KEY")}))
        (tmp_path / "again").mkdir()
        assert only(run_probe(task(tmp_path / "again"), "10.0.0.2").findings["node_secrets"]) == (
            "ok",
            "the 2 secrets of the job are there",
        )


class TestOverNodes:
    def test_what_cannot_be_asked_at_all_is_told_in_the_place_of_reports(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise ResourceError("no Ray cluster answers at 10.0.0.1:6379: check --address")

        monkeypatch.setattr(node_checks, "connected", refuse)
        (tmp_path / "file").touch()
        subject = subject_of(tmp_path, {"data.cache_dir": str(tmp_path / "file" / "prepared")})
        driver, cluster = reports_of(subject)
        assert only(driver.findings["node_storage"])[1].startswith("data.cache_dir: cannot write ")
        assert "no Ray cluster answers at 10.0.0.1:6379" in only(cluster.findings["node_storage"])[1]
        assert only([*run_check(CHECKS[-1], subject)]) == ("skipped", "no node could be checked")

    def test_what_is_fine_everywhere_is_said_once(self) -> None:
        reports = [Report(f"10.0.0.{number}", {"node_data": [ok("3 files")]}) for number in (1, 2, 3)]
        assert list(merged(reports, "node_data")) == [ok("on 10.0.0.1, 10.0.0.2, 10.0.0.3: 3 files")]

    def test_what_is_wrong_names_its_nodes(self) -> None:
        reports = [
            Report("10.0.0.1", {"node_data": [ok("3 files")]}),
            Report("10.0.0.2", {"node_data": [problem("a.csv: no such file")]}),
            Report("10.0.0.3", {"node_data": [problem("a.csv: no such file")]}),
            Report("10.0.0.4", {}),
        ]
        assert list(merged(reports, "node_data")) == [
            problem("on 10.0.0.2, 10.0.0.3: a.csv: no such file"),
            ok("on 10.0.0.1: 3 files"),
        ]

    def test_a_check_of_which_no_node_says_anything_is_skipped(self) -> None:
        assert list(merged([Report("10.0.0.1", {})], "node_data")) == [skipped("no node could be checked")]

    def test_other_versions_than_the_driver_s_are_errors(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(node_checks, "versions_here", lambda: {"python": "3.11.7", "torch": None})
        other = replace(task(tmp_path), versions={"python": "3.11.7", "torch": "2.13.0"})
        (note,) = merged([run_probe(other, "10.0.0.2")], "node_versions")
        assert note == problem(
            "on 10.0.0.2: torch is missing, but 2.13.0 on the driver's node: install the same versions everywhere"
        )


def test_nodes_are_asked_for_manifests_some_recordings_and_the_model(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, {"model.init": "pretrained", "model.name_or_path": "/mnt/whisper"})
    found = locations_of(subject)
    assert str(tmp_path / "train.csv") in found
    assert str(tmp_path / "test" / "001.wav") in found
    assert found[-1] == "/mnt/whisper/config.json"
    search = {"method": "beam", "lm": "/mnt/lm.arpa", "lexicon": "/mnt/words"}
    searched = subject_of(tmp_path, {"model": {"init": "scratch", "family": "ctc"}, "decode": search})
    assert {"/mnt/lm.arpa", "/mnt/words"} <= set(locations_of(searched))
    archive = write_tar(tmp_path / "corpus.tar", [("train.csv", b"path,text\na.wav,one\n"), ("a.wav", b"RIFF")])
    assert locations_of(subject_of(tmp_path, {"data.train": f"{archive}/train.csv"}))[0] == str(archive)
    hub = subject_of(tmp_path, {"model.init": "pretrained", "model.name_or_path": "openai/whisper-tiny"})
    assert not [location for location in locations_of(hub) if "openai" in location]
