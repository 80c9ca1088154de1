"""rayscribe average refuses what cannot be averaged before it loads anything."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.cli.app import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shares", "a,b"], "--shares a,b: numbers with commas between them"),
        (["--shares", "0.5"], "--shares 0.5: one share for each RUN, of which there are 2"),
        (["--shares", "0.5,0.6"], "--shares 0.5,0.6: give shares above 0 that sum to 1; these sum to 1.1"),
        (["--shares", "0,1"], "--shares 0,1: give shares above 0"),
    ],
)
def test_shares_are_positive_and_sum_to_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
) -> None:
    assert main(["average", "ana/a", "ana/b", "--output", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_with_files_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("mine")
    assert main(["average", "ana/a", "ana/b", "--output", str(tmp_path)]) == 2
    assert f"--output {tmp_path}: name a folder of this machine that is empty" in capsys.readouterr().err


def test_a_single_model_has_no_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    assert main(["average", str(tmp_path / "model"), "--output", str(tmp_path / "out")]) == 2
    assert "an average needs two models, and this is one model" in capsys.readouterr().err
