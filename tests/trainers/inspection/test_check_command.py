import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainers.inspection.checking import sound_corpus, subject_of
from tests.trainers.synthetic import content
from tests.trainers.test_main import one_message, task
from trainers.errors import ConfigError, DataError
from trainers.findings import Check, Finding, Level, ok, run_check
from trainers.inspection.check_command import inspect, parse_groups
from trainers.inspection.subject import Subject

ROOT = Path(__file__).parents[3]


def lines_of(subject: Subject, *groups: str) -> list[dict[str, Any]]:
    """All that a run over some groups says."""
    lines: list[str] = []
    inspect(subject, groups, lines.append)
    return [json.loads(line) for line in lines]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(content(sound_corpus(tmp_path))))
    return path


def test_each_group_announces_its_checks_before_their_findings(tmp_path: Path) -> None:
    lines = lines_of(subject_of(tmp_path), "storage", "data")
    announced = [line["checks"] for line in lines if "group" in line]
    assert announced[0] == ["storage", "hub"]
    found = [line["check"] for line in lines if "check" in line]
    assert list(dict.fromkeys(found)) == [name for names in announced for name in names]
    assert {tuple(line) for line in lines if "check" in line} == {("check", "level", "text", "seconds")}


def test_a_check_that_breaks_says_so_and_keeps_what_it_found(tmp_path: Path) -> None:
    def breaks(subject: Subject) -> Iterator[Finding]:
        yield ok("so far so good")
        raise TypeError("a slip")

    findings = list(run_check(Check("slip", (), breaks), subject_of(tmp_path)))
    assert [(finding.check, finding.level) for finding in findings] == [("slip", "ok"), ("slip", "warning")]
    assert findings[1].text == "the check itself failed (TypeError: a slip); check this by hand"


def test_an_error_of_ours_is_a_problem_in_its_own_words(tmp_path: Path) -> None:
    def refuses(subject: Subject) -> Iterator[Finding]:
        raise DataError("a.csv: no rows: add some")
        yield

    (finding,) = run_check(Check("refuses", (), refuses), subject_of(tmp_path))
    assert (finding.level, finding.text) == (Level.ERROR, "a.csv: no rows: add some")


def test_a_package_that_cannot_be_imported_is_a_problem_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("trainers.inspection.", "trainers.models."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    group, line = lines_of(subject_of(tmp_path), "model")
    assert group == {"group": "model", "checks": ["model"]}
    assert (line["check"], line["level"]) == ("model", "error")
    assert "transformers" in line["text"]
    _, line = lines_of(subject_of(tmp_path, elsewhere=True), "model")
    assert line["level"] == "skipped"


def test_unknown_groups_are_named() -> None:
    assert parse_groups("storage, nodes") == ("storage", "nodes")
    with pytest.raises(ConfigError, match="--only storage,dta: dta is none of storage, data, model, hardware, nodes"):
        parse_groups("storage,dta")


class TestVerb:
    @pytest.mark.integration
    def test_a_sound_config_ends_well_and_needs_no_torch_for_its_data(self, recipe: Path) -> None:
        without = "import sys; sys.modules['torch'] = None; from trainers.main import main; main(sys.argv[1:])"
        arguments = ["--verb", "check", "--only", "storage,data", "--config", str(recipe)]
        answer = subprocess.run(
            [sys.executable, "-c", without, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        levels = {line["level"] for line in map(json.loads, answer.stdout.splitlines()) if "level" in line}
        assert levels == {"ok"}

    @pytest.mark.integration
    def test_an_error_gives_the_exit_code_of_a_bad_config(self, recipe: Path) -> None:
        arguments = ["--verb", "check", "--only", "data", "--config", str(recipe), "--set", "data.test=nowhere.csv"]
        answer = task(*arguments, folder=recipe.parent)
        assert answer.returncode == 2
        assert "nowhere.csv: no such file" in answer.stdout
        assert "Traceback" not in answer.stderr

    @pytest.mark.integration
    def test_a_group_asks_only_for_the_paths_that_it_opens(self, recipe: Path) -> None:
        unset = "data.train=${RAYSCRIBE_TEST_NOWHERE}/train.csv"
        answers = {
            group: task(
                "--verb", "check", "--only", group, "--config", str(recipe), "--set", unset, folder=recipe.parent
            )
            for group in ("storage", "data")
        }
        assert answers["storage"].returncode == 0
        assert "data.train: ${RAYSCRIBE_TEST_NOWHERE}/train.csv names the variable" in one_message(answers["data"])

    @pytest.mark.integration
    def test_a_group_that_does_not_exist_is_one_message(self, recipe: Path) -> None:
        answer = task("--verb", "check", "--only", "dta", "--config", str(recipe), folder=recipe.parent)
        assert "--only dta: dta is none of" in one_message(answer)


@pytest.mark.integration
def test_a_light_process_finds_the_same_without_torch(tmp_path: Path, recipe: Path) -> None:
    ended = task("--verb", "check", "--light", "--config", str(recipe), folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    light = [json.loads(line) for line in ended.stdout.splitlines()]
    whole = lines_of(subject_of(tmp_path), "storage", "data", "model", "hardware")
    assert [line.get("check") for line in light] == [line.get("check") for line in whole]
    assert {line["level"] for line in light if "check" in line} == {"ok"}
    # transformers warns where it finds no torch.
    assert "PyTorch was not found" in ended.stderr


@pytest.mark.parametrize(
    ("changes", "elsewhere", "needed"),
    [
        ({}, False, False),
        ({"training.training_args": {"optim": "adafactor"}}, False, True),
        ({"training.lr_scheduler_type": "cosine"}, False, True),
        ({"scaling.use_gpu": True}, False, True),
        ({"scaling.use_gpu": True}, True, False),
    ],
)
def test_torch_is_needed_for_what_only_it_can_judge(
    tmp_path: Path, changes: dict[str, Any], elsewhere: bool, needed: bool
) -> None:
    assert subject_of(tmp_path, changes, elsewhere=elsewhere).needs_torch is needed
