from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from jobs.submission.assemble import Bundle, collect_bundle, pack_bundle
from jobs.submission.job_spec import load_spec
from runtime_env.build import SCRIPT, render
from runtime_env.config import RuntimeEnvPart
from tests.jobs.sample import CONTENT
from trainers.errors import ConfigError

NOW = datetime(2026, 11, 20, tzinfo=UTC)
BY_SCRIPT = {"pip": ["tiny-speech==1.0"], "install": "script"}


def gathered(root: Path, script: str) -> Bundle:
    """The bundle of a run that installs by a script, in a repository that has a file of the script's name."""
    (root / "task.py").write_text("")
    (root / SCRIPT).write_text(script)
    recipe = root / "sr.yaml"
    recipe.write_text(yaml.safe_dump({**CONTENT, "job": {"runtime_env": BY_SCRIPT}}))
    return collect_bundle(load_spec(recipe, (), here=root, environment={}, now=NOW))


def test_the_run_s_install_script_takes_the_place_of_the_repository_s(tmp_path: Path) -> None:
    own = render(RuntimeEnvPart.model_validate({"pip": ["torch==2.13.0"], "install": "script"}))
    bundle = gathered(tmp_path, own)
    assert bundle.extra[SCRIPT] == render(RuntimeEnvPart.model_validate(BY_SCRIPT)).encode()
    assert [item.path for item in bundle.tree.left_out] == [SCRIPT]
    assert pack_bundle(bundle, tmp_path / "packages").files == 4, "the record of overrides is the fourth"


def test_another_file_of_the_script_s_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=SCRIPT):
        pack_bundle(gathered(tmp_path, "echo a script of my own\n"), tmp_path / "packages")
