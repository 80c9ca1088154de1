"""`rayscribe cluster validate`: exit codes, and each broken rule with its place, value and fix."""

import json
from pathlib import Path

import pytest

from jobs.cli.app import main
from tests.test_architecture import ROOT

FILES = ROOT / "tests" / "cluster_configs" / "validation"


def test_a_broken_rule_has_its_name_place_value_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    path = FILES / "broken" / "dashboard-loopback-space.yaml"
    assert main(["cluster", "validate", str(path)]) == 2
    output = capsys.readouterr()
    first, place, value, fix = output.out.splitlines()
    assert first.startswith(f"{path} (ray up): 1 of ")
    assert place == "  dashboard-loopback: line 10, head_start_ray_commands[0]"
    assert value == "    value: --dashboard-host=0.0.0.0"
    assert fix.startswith("    fix:   use --dashboard-host=127.0.0.1")
    assert output.err == ""


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    path = FILES / "broken" / "token-authentication.sbatch"
    assert main(["cluster", "validate", str(path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["valid"]) == ("Slurm script", False)
    assert [(broken["rule"], broken["line"]) for broken in found["broken"]] == [("token-authentication", 13)]
    assert "token-authentication" in found["checked"]


def test_a_spec_is_checked_by_what_is_rendered_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "validate", str(ROOT / "cluster_configs" / "specs" / "local.yaml")]) == 0
    assert "(ClusterSpec): ok" in capsys.readouterr().out


def test_a_file_without_end_is_not_read_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "validate", "/dev/zero"]) == 2
    assert "value: more than 262144 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["readable.yaml", "readable-binary.yaml", "yaml.yaml", "known-kind.yaml"])
def test_what_cannot_be_read_is_a_broken_rule(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "validate", str(FILES / "broken" / name)]) == 2
    assert "fix:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "absent.yaml"])
def test_no_file_is_an_error_of_the_user(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "validate", str(tmp_path / name)]) == 2
    assert "cannot be read" in capsys.readouterr().err
