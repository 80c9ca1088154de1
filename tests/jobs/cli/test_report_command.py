"""`rayscribe report`: where the page of a run, or of a prepared set, is written."""

from pathlib import Path

import pytest
import yaml

from jobs.cli.app import main
from tests.trainers.prepared import prepared_train
from tests.trainers.run_folder.finished_runs import finish
from tests.trainers.synthetic import content, write_corpus
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that nobody has registered."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    folder = finish(RunFolder(open_storage(str(tmp_path / "small"))))
    folder.storage.write_bytes("config.yaml", yaml.safe_dump(content({"run.name": "small"})).encode())
    return tmp_path / "small"


def test_the_page_is_written_into_the_run_folder_and_again_over_itself(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["report", str(run)]) == 0
        assert capsys.readouterr().out == f"written: {run}/report.html\n"
    assert "<h1>small</h1>" in (run / "report.html").read_text(encoding="utf-8")


def test_a_file_that_is_named_is_not_replaced_unasked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run.parent / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert "<h1>small</h1>" in page.read_text(encoding="utf-8") and not (run / "report.html").exists()
    assert main(["report", str(run), "--out", str(page)]) == 2
    assert "already exists: add --force" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(page), "--force"]) == 0


def test_the_page_of_a_prepared_set_is_written_into_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_corpus(tmp_path / "corpus", ["one", "two"], durations_s=[0.5, 0.5])
    prepared = prepared_train(manifest, str(tmp_path / "prepared"))
    assert main(["report", prepared.url]) == 0
    assert capsys.readouterr().out == f"written: {prepared.url}/report.html\n"
    assert "Prepared set" in Path(prepared.url, "report.html").read_text(encoding="utf-8")


def test_a_run_that_is_not_there_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run.parent / "none")]) == 21
    assert "no run is in" in capsys.readouterr().err
