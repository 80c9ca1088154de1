"""`rayscribe launch`: options that fit together, and recipes that are written whole or not at all."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from jobs.cli.app import app, main

LINE = ["--", "torchrun", "--nproc_per_node", "2", "train.py", "--name", "it's one"]


def test_a_recipe_is_written_and_replaced_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    assert main(["launch", "--write", str(file), "--address", "http://ray:8265", *LINE]) == 0
    content = yaml.safe_load(file.read_text())
    assert content["script"]["command"] == ["train.py", "--name", "it's one"]
    assert (content["scaling"], content["job"]) == ({"num_workers": 2}, {"address": "http://ray:8265"})
    assert main(["launch", "--write", str(file), "--", "other.py"]) == 2
    assert "run.yaml: already exists: add --force" in capsys.readouterr().err
    assert yaml.safe_load(file.read_text()) == content
    assert main(["launch", "--write", str(file), "--force", "--", "other.py"]) == 0
    assert yaml.safe_load(file.read_text())["script"]["command"] == ["other.py"]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--write", "no/run.yaml"], "--write no/run.yaml: No such file or directory: name a file that can be written"),
        (["--write", ".", "--force"], "--write .: already exists: name a file"),
        (["--write", "run.yaml", "--set", "script.stop_grace_s=0"], "script.stop_grace_s"),
        (["--write", "run.yaml", "--set", "job.prioritty=1"], "job.prioritty: unknown key"),
        (["--write", "run.yaml", "--submit"], "leave out --submit"),
        (["--force"], "--force is for --write, whose file it replaces"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    options: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *options, *LINE]) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--num-workers", "0"], "Invalid value for '--num-workers': Input should be greater than or equal to 1"),
        (["--submit", "--set", "scaling.num_workers=0"], "launch: 1 problem\n  - scaling.num_workers: "),
        (["--set", "scaling.num_workers=0"], "launch: 1 problem\n  - scaling.num_workers: "),
    ],
)
def test_a_wrong_number_is_refused_by_the_option_and_no_file_is_named(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *options, "--", "train.py"]) == 2
    said = capsys.readouterr().err
    assert problem in said and "train.yaml" not in said


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        (["train.py"], True),
        (["train.py", "--output_dir", "out"], False),
        (["--sync-dir", "out", "--", "train.py", "--out", "out"], False),
    ],
)
def test_a_line_that_names_no_output_folder_is_told_so_before_anything_starts(line: list[str], is_said: bool) -> None:
    words = line if "--" in line else ["--", *line]
    result = CliRunner().invoke(app, ["launch", "--write", "-", *words])
    assert result.exit_code == 0
    assert result.stderr.count("nothing that it writes is kept: set script.sync_dir") == is_said


def test_each_way_to_submit_a_program_says_once_that_its_output_folder_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    options = ["--storage-path", str(tmp_path / "runs")]
    assert CliRunner().invoke(app, ["launch", "--write", "run.yaml", *options, "--", "train.py"]).exit_code == 0
    for command in (["launch", "--dry-run", *options, "--", "train.py"], ["submit", "run.yaml", "--dry-run"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert result.stderr.count("nothing that it writes is kept: set script.sync_dir") == 1


def test_a_program_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Also before a Ray of this machine starts.
    for options in (["--dry-run"], ["--storage-path", str(tmp_path / "runs")]):
        assert main(["launch", *options, "--", "trian.py"]) == 2
        assert f"trian.py: no such file in {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "line",
    [
        ["--", "train.py", "--hub_token=hunter22"],
        ["--", "torchrun", "--nproc_per_node", "2", "train.py", "--password", "hunter22"],
        ["torchrun train.py --aws_secret_access_key hunter22"],
        ["HF_TOKEN=hunter22 torchrun train.py"],
        ["--env", "HF_TOKEN=hunter22", "--", "train.py"],
        ["--prepare", "prepare.py --api-key hunter22 {data}", "--", "train.py"],
        ["--", "torchrun", "--hub_token=hunter22", "train.py"],
    ],
)
@pytest.mark.parametrize("how", [["--write", "-"], ["--dry-run"]])
def test_a_secret_of_a_program_is_refused_by_its_name_and_not_repeated(
    line: list[str], how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *how, *line]) == 2
    output = capsys.readouterr()
    assert "hunter22" not in output.out + output.err
    assert any(word in output.err for word in ("looks like a credential (not shown)", "there is no such option"))


def test_a_reference_to_a_secret_stays_one_also_in_a_text_whose_variables_are_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter22")
    monkeypatch.setenv("LR", "1")
    assert main(["launch", "--write", "-", "HF_TOKEN=$HF_TOKEN train.py --lr $LR --hub_token ${HF_TOKEN}"]) == 0
    part = yaml.safe_load(capsys.readouterr().out)["script"]
    assert part["command"] == ["train.py", "--lr", "1", "--hub_token", "${HF_TOKEN}"]
    assert part["env"] == {"HF_TOKEN": "${HF_TOKEN}"}
