import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jobs.preflight import inspections
from jobs.preflight.context import Context, external_url
from jobs.preflight.inspections import GROUPS, command_of, inspecting, parse_findings, unreported
from jobs.preflight.runner import run_preflight
from jobs.submission.job_spec import load_spec
from tests.jobs.preflight.contexts import NOW, clusters_of, context_of, dashboard_at
from tests.trainers.inspection.checking import sound_corpus
from tests.trainers.synthetic import content, write_rows
from trainers.findings import Finding

ROOT = Path(__file__).parents[3]
PRINTS = """import json, sys, time
print("a library says hello")
print(json.dumps({"group": "storage", "checks": ["storage"]}), flush=True)
print('{"check": "storage", "level": "ok", "text": "fi\\u2028ne", "seconds": 0.1}', flush=True)
print('{"half a line', flush=True)
print(json.dumps({"group": "data", "checks": ["manifests", "durations"]}), flush=True)
"""


def entry(folder: Path, text: str) -> Context:
    """A context whose repository has this task.py."""
    context = context_of(folder)
    (folder / "repository" / "task.py").write_text(text)
    return context


def findings_of(context: Context) -> dict[str, Finding]:
    with inspecting(context) as findings:
        return {finding.check: finding for finding in findings()}


class TestProcess:
    @pytest.mark.integration
    def test_what_is_not_reached_in_time_is_said_to_be_skipped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspections, "QUICK_TIMEOUT_S", 3.0)
        found = findings_of(entry(tmp_path, f"{PRINTS}\ntime.sleep(600)\n"))
        assert (found["storage"].level, found["storage"].text) == ("ok", "fi\u2028ne")
        assert set(found) == {"storage", "manifests", "durations", "model", "hardware"}
        assert found["manifests"].level == found["hardware"].level == "skipped"
        assert found["model"].text == "not done within 3 s; `rayscribe preflight` waits longer"

    def test_a_process_that_breaks_off_is_quoted_without_its_traceback(self, tmp_path: Path) -> None:
        found = findings_of(entry(tmp_path, f"{PRINTS}\nraise MemoryError('no more')\n"))
        assert found["storage"].level == "ok"
        assert found["manifests"].text == "`task.py --verb check` ended with exit code 1: MemoryError: no more"

    def test_an_entry_that_knows_no_checks(self, tmp_path: Path) -> None:
        found = findings_of(entry(tmp_path, "import sys\nsys.exit(\"error: --verb: invalid choice: 'check'\")\n"))
        assert set(found) == set(GROUPS)
        assert {finding.level for finding in found.values()} == {"skipped"}
        assert "invalid choice: 'check'" in found["data"].text

    def test_plain_variables_of_the_job_reach_it(self, tmp_path: Path) -> None:
        root = tmp_path / "repository"
        root.mkdir()
        said = '{"check": "storage", "level": "ok", "text": os.environ["SPEECH"], "seconds": 0}'
        (root / "task.py").write_text(f"import json, os\nprint(json.dumps({said}))\n")
        recipe = root / "recipe.yaml"
        recipe.write_text(
            yaml.safe_dump(
                {
                    **content({"data.train": "${SPEECH}/train.csv", "run.storage_path": "/mnt/runs"}),
                    "job": {"runtime_env": {"env_vars": {"SPEECH": "/mnt/speech"}}},
                }
            )
        )
        spec = load_spec(recipe, [], here=root, environment={}, now=NOW)
        assert findings_of(Context(spec, None, None, deep=False))["storage"].text == "/mnt/speech"

    def test_what_only_the_nodes_know_is_not_looked_for_here(self, tmp_path: Path) -> None:
        root = tmp_path / "repository"
        root.mkdir()
        (root / "task.py").write_text("raise SystemExit('not to be run')\n")
        recipe = root / "recipe.yaml"
        secret = {"runtime_env": {"secrets": {"WHERE": {"env": "WHERE"}}}}
        recipe.write_text(
            yaml.safe_dump(
                {**content({"data.train": "${WHERE}/train.csv", "run.storage_path": "/mnt/runs"}), "job": secret}
            )
        )
        spec = load_spec(recipe, [], here=root, environment={}, now=NOW)
        found = findings_of(Context(spec, None, None, deep=False))
        assert {finding.text for finding in found.values()} == {"the recipe names WHERE, which only the nodes know"}

    def test_it_ends_with_the_block(self, tmp_path: Path) -> None:
        context = entry(tmp_path, "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
        pid = tmp_path / "repository" / "pid"
        with pytest.raises(KeyboardInterrupt), inspecting(context):
            while not (pid.is_file() and pid.read_text()):
                time.sleep(0.01)
            raise KeyboardInterrupt
        assert not psutil.pid_exists(int(pid.read_text()))


class TestCommand:
    def test_files_of_other_machines_are_not_asked_for_as_ours(self, tmp_path: Path) -> None:
        here = command_of(context_of(tmp_path, address="http://127.0.0.1:8265"))
        assert here[:2] == [sys.executable, "task.py"]
        assert "--elsewhere" not in here
        assert "--elsewhere" in command_of(context_of(tmp_path, address="http://10.0.0.1:8265"))
        assert "--elsewhere" in command_of(context_of(tmp_path)), "a service chooses the cluster"
        assert "--elsewhere" not in command_of(context_of(tmp_path, deep=True)), "a question about this machine"

    def test_a_deep_preflight_reads_more_recordings(self, tmp_path: Path) -> None:
        quick, deep = (command_of(context_of(tmp_path, deep=deep)) for deep in (False, True))
        assert float(quick[quick.index("--recordings-s") + 1]) < float(deep[deep.index("--recordings-s") + 1])


class TestLines:
    def test_only_findings_are_taken(self) -> None:
        lines = ["hello", "{}", "[1]", '{"check": 3}', '{"check": "a", "level": "terrible", "text": "", "seconds": 0}']
        assert parse_findings(lines) == []
        line = json.dumps({"check": "a", "level": "error", "text": "x", "seconds": 1.5})
        assert parse_findings([line]) == [Finding(check="a", level="error", text="x", seconds=1.5)]

    def test_silent_checks_of_a_group_are_named_and_silent_groups_by_their_own_name(self) -> None:
        lines = [
            json.dumps({"group": "data", "checks": ["manifests", "durations"]}),
            json.dumps({"check": "manifests", "level": "ok", "text": "", "seconds": 0}),
        ]
        assert [finding.check for finding in unreported(lines, ("data", "model"), "why")] == ["durations", "model"]


class TestWhole:
    """The real task.py, as `rayscribe submit` runs it."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Path:
        path = tmp_path / "my.yaml"
        path.write_text(yaml.safe_dump(content(sound_corpus(tmp_path))))
        return path

    def preflight(self, recipe: Path, *sets: str, **options: Any) -> dict[str, list[Finding]]:
        """Findings by check."""
        spec = load_spec(recipe, sets, here=ROOT, now=NOW)
        asked: dict[str, Any] = {"clusters": None, "address": None, "deep": True, **options}
        found: dict[str, list[Finding]] = {}
        for finding in run_preflight(spec, **asked):
            found.setdefault(finding.check, []).append(finding)
        return found

    @pytest.mark.integration
    def test_a_sound_recipe_has_no_error_and_no_warning(self, recipe: Path) -> None:
        found = self.preflight(recipe)
        levels = {finding.check: finding.level for findings in found.values() for finding in findings}
        skipped = {check for check, level in levels.items() if level == "skipped"}
        assert skipped == {"cluster", "open_dashboard", "versions", "gang"}
        assert {level for check, level in levels.items() if check not in skipped} == {"ok"}
        assert {"working_dir", "storage", "manifests", "labels", "torch_build"} <= set(levels)

    @pytest.mark.integration
    def test_errors_of_all_kinds_are_reported_at_once(self, recipe: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        leak = write_rows(tmp_path / "leak.csv", [("train/000.wav", "one two three"), ("gone.wav", "")])
        found = self.preflight(
            recipe,
            f"run.storage_path={tmp_path / 'file' / 'runs'}",
            f"data.test={leak}",
            "model.max_label_tokens=6",
            "training.training_args={output_dir: x}",
            "scaling.use_gpu=true",
        )
        errors = {check for check, findings in found.items() if any(item.level == "error" for item in findings)}
        assert errors >= {"storage", "leakage", "recordings", "labels", "arguments"}
        warnings = {check for check, findings in found.items() if any(item.level == "warning" for item in findings)}
        assert warnings >= {"transcripts", "leakage"}

    @pytest.mark.integration
    def test_files_that_only_the_nodes_have_are_no_errors(self, recipe: Path) -> None:
        with dashboard_at("0.0.0.0") as dashboard:
            outside = external_url(dashboard.url)
            assert outside is not None, "this machine has no address but loopback"
            far = ["data.train=/mnt/speech/train.csv", "run.storage_path=/only-on-the-nodes/runs"]
            cluster = clusters_of({"CPU": 8.0}, {"CPU": 8.0})
            found = self.preflight(recipe, *far, address=outside, clusters=cluster, deep=False)
        levels = {finding.level for findings in found.values() for finding in findings}
        assert "error" not in levels
        assert found["storage"][0].level == "skipped"
        assert "the nodes may reach it" in found["storage"][0].text
