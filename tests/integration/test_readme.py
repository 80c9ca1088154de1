"""The README's first lines, one by one, in a fresh clone, with nothing of this environment's packages."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.page_commands import scripts_of
from tests.test_architecture import ROOT
from trainers.distributed.local_ray import without_ray_settings

ADDRESS = "https://github.com/rayscribe/rayscribe"
# The clone's own tests would run this one again: as many as show that they can run.
SOME_TESTS = "tests/test_settings.py tests/jobs/ledger/test_postgres_server.py"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_first_lines_of_the_readme_work_in_a_fresh_clone(tmp_path: Path) -> None:
    clone, own = scripts_of(ROOT / "README.md")
    installing, *_ = own.splitlines()
    activate = "python3 -m venv own && source own/bin/activate"
    script = f"set -euo pipefail\n{clone}\n{activate}\n{installing}\nrayscribe --version\n"
    variables = {
        # The address leads to this repository.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
        "HOME": str(tmp_path),
        "PYTEST_ADDOPTS": SOME_TESTS,
        # The versions that were tested, of which an installation of one's own takes newer ones.
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    kept = {name: value for name, value in without_ray_settings().items() if not name.startswith("RAYSCRIBE_")}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**kept, "PATH": os.environ["PATH"].partition(os.pathsep)[2], **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "WER" in done.stdout and " passed" in done.stdout, done.stdout
