import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.preflight.client_checks import OF_PACKAGE, OF_PROGRAMS
from jobs.preflight.context import Context
from jobs.preflight.runner import run_preflight
from jobs.submission.job_spec import load_spec
from tests.jobs.preflight.contexts import NOW, clusters_of, context_of, dashboard_at, named, repository, single_finding
from trainers.findings import run_check

WORKING_DIR = named(OF_PACKAGE, "working_dir")
PACKAGED_DATA = named(OF_PACKAGE, "packaged_data")
STORAGE_PATH = named(OF_PACKAGE, "storage_path")
STORAGE = named(OF_PROGRAMS, "storage")
NODE = {"CPU": 8.0}


class TestWorkingDir:
    def test_a_small_one_is_fine(self, tmp_path: Path) -> None:
        finding = single_finding(WORKING_DIR, context_of(tmp_path))
        assert finding.level == "ok"
        assert "3 files" in finding.text

    @pytest.mark.integration
    def test_one_over_ray_s_limit_names_the_largest_files(self, tmp_path: Path) -> None:
        root = repository(tmp_path)
        (root / "weights.bin").write_bytes(os.urandom(101 * 1024**2))
        finding = single_finding(WORKING_DIR, context_of(tmp_path))
        assert finding.level == "error"
        assert "Limits are 100 MiB as a zip" in finding.text
        assert "weights.bin 101.0 MiB" in finding.text
        assert ".rayignore" in finding.text


class TestPackagedData:
    def test_data_inside_of_the_repository_goes_along(self, tmp_path: Path) -> None:
        root = repository(tmp_path)
        for name in ("train", "validation"):
            (root / f"{name}.csv").write_text("path,text\n")
        context = context_of(tmp_path, {"data.train": "train.csv", "data.validation": "./validation.csv"})
        assert [finding.level for finding in run_check(PACKAGED_DATA, context)] == ["ok", "ok"]

    def test_a_file_that_is_ignored_stays_at_home(self, tmp_path: Path) -> None:
        root = repository(tmp_path)
        (root / "train.csv").write_text("path,text\n")
        (root / ".gitignore").write_text("*.csv\n")
        finding = single_finding(PACKAGED_DATA, context_of(tmp_path, {"data.train": "train.csv"}))
        assert finding.level == "error"
        assert "data.train: train.csv is not packaged, since .gitignore, .rayignore or" in finding.text
        assert "--set data.train=s3://…" in finding.text

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        finding = single_finding(PACKAGED_DATA, context_of(tmp_path, {"data.train": "trian.csv"}))
        assert finding.level == "error"
        assert "data.train: trian.csv: no such file in" in finding.text

    def test_a_manifest_of_noise_goes_along_too(self, tmp_path: Path) -> None:
        finding = single_finding(PACKAGED_DATA, context_of(tmp_path, {"augment.noise_manifest": "noise.csv"}))
        assert finding.level == "error"
        assert "augment.noise_manifest: noise.csv: no such file in" in finding.text

    def test_files_of_a_beam_search_are_data_too(self, tmp_path: Path) -> None:
        search = {"model": {"init": "scratch", "family": "ctc"}, "decode": {"method": "beam", "lm": "lm.arpa"}}
        finding = single_finding(PACKAGED_DATA, context_of(tmp_path, search))
        assert finding.level == "error" and "decode.lm: lm.arpa: no such file in" in finding.text

    def test_absolute_paths_are_others_business(self, tmp_path: Path) -> None:
        assert single_finding(PACKAGED_DATA, context_of(tmp_path)).level == "ok"


def program_in(root: Path, storage: str = "s3://bucket/runs", command: str = "train.py", **script: Any) -> Context:
    """A recipe of a program, for a cluster of this machine."""
    content = {"trainer": "script", "run": {"name": "mine", "storage_path": storage}, "job": {}, "scaling": {}}
    path = root / "recipe.yaml"
    path.write_text(yaml.safe_dump({**content, "script": {"command": [command], **script}}))
    spec = load_spec(path, [], here=root, now=NOW, is_local=lambda address: True)
    return Context(spec, "http://127.0.0.1:1", clusters_of(NODE), deep=False)


class TestStorageOfAProgram:
    def test_a_folder_that_cannot_be_made_is_an_error_with_its_path_and_the_fix(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").touch()
        (tmp_path / "file").touch()
        runs = tmp_path / "file" / "runs"
        context = program_in(tmp_path, str(runs))
        finding = single_finding(STORAGE, context)
        assert finding.level == "error"
        assert str(runs) in finding.text and "choose another storage path" in finding.text
        findings = run_preflight(context.spec, clusters=None, address=None, deep=True)
        assert ("storage", "error") in {(each.check, each.level) for each in findings}

    def test_one_that_can_be_written_is_left_as_it_was(self, tmp_path: Path) -> None:
        assert single_finding(STORAGE, program_in(tmp_path, str(tmp_path / "deep" / "runs"))).level == "ok"
        assert not (tmp_path / "deep").exists()


class TestPackagedProgram:
    def test_one_that_is_not_there_is_told_from_one_that_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").touch()
        (tmp_path / ".gitignore").write_text("train.py\n")
        missing, ignored = (
            single_finding(PACKAGED_DATA, program_in(tmp_path, command=f"{name}.py")) for name in ("trian", "train")
        )
        assert (missing.level, ignored.level) == ("error", "error")
        assert missing.text.startswith(f"script.command: trian.py: no such file in {tmp_path}")
        assert ".gitignore and .rayignore" in ignored.text

    @pytest.mark.parametrize(
        ("python", "levels"), [("/no/python", ["ok", "error"]), (sys.executable, ["ok"]), ("python9", ["ok"])]
    )
    def test_an_interpreter_that_this_machine_lacks_is_named(
        self, tmp_path: Path, python: str, levels: list[str]
    ) -> None:
        (tmp_path / "train.py").touch()
        findings = list(run_check(PACKAGED_DATA, program_in(tmp_path, python=python)))
        assert [finding.level for finding in findings] == levels
        assert all(
            finding.level == "ok" or f"script.python: {python} is not a program" in finding.text for finding in findings
        )

    def test_a_module_that_is_linked_from_outside_is_named_with_the_folder_to_start_in(self, tmp_path: Path) -> None:
        corpus = tmp_path / "Corpus"
        recipe = corpus / "ASR" / "CTC"
        recipe.mkdir(parents=True)
        (recipe / "train.py").touch()
        (corpus / "corpus_prepare.py").touch()
        (recipe / "corpus_prepare.py").symlink_to("../../corpus_prepare.py")
        (recipe / "notes.txt").symlink_to("../../notes.txt")
        packaged, linked = run_check(PACKAGED_DATA, program_in(recipe))
        assert (packaged.level, linked.level) == ("ok", "error")
        assert f"start in {corpus} with --working-dir ASR/CTC" in linked.text


class TestStoragePath:
    @pytest.mark.parametrize(
        ("path", "nodes", "level", "words"),
        [
            ("s3://bucket/runs", 3, "ok", "the same for all nodes"),
            (None, 1, "ok", "the cluster has one node"),
            (None, 2, "error", "/ray_results, on a cluster of 2 nodes"),
            ("/tmp/runs", 3, "error", "/tmp/runs, on a cluster of 3 nodes or more"),
            ("/tmp", 3, "error", "give a folder that all nodes share, or a bucket"),
            ("/tmpfiles/runs", 3, "skipped", "`rayscribe preflight` checks it on each node"),
            ("/mnt/runs", 3, "skipped", "whether /mnt/runs is the same folder on all 3 nodes"),
        ],
    )
    def test_a_folder_of_one_node_is_found(
        self, tmp_path: Path, path: str | None, nodes: int, level: str, words: str
    ) -> None:
        with dashboard_at() as dashboard:
            context = context_of(
                tmp_path, {"run.storage_path": path}, address=dashboard.url, clusters=clusters_of(*[NODE] * nodes)
            )
            finding = single_finding(STORAGE_PATH, context)
        assert (finding.level, words in finding.text) == (level, True), finding

    def test_a_cluster_that_can_grow_has_several_nodes(self, tmp_path: Path) -> None:
        with dashboard_at() as dashboard:
            growing = clusters_of(NODE, grows_to={"CPU": 64.0})
            context = context_of(tmp_path, {"run.storage_path": None}, address=dashboard.url, clusters=growing)
            assert single_finding(STORAGE_PATH, context).level == "error"

    @pytest.mark.parametrize(("workers", "level"), [(1, "ok"), (2, "warning")])
    def test_of_a_cluster_that_does_not_answer_only_the_workers_are_known(
        self, tmp_path: Path, workers: int, level: str
    ) -> None:
        changes: dict[str, Any] = {"run.storage_path": None, "scaling.num_workers": workers}
        assert single_finding(STORAGE_PATH, context_of(tmp_path, changes, address="http://127.0.0.1:1")).level == level
