"""The environment with the packages of every format, over ours: `make exports` makes it."""

from pathlib import Path

from tests.settings import setting
from tests.test_architecture import ROOT

PYTHON = Path(setting("RAYSCRIBE_TEST_EXPORTS", str(ROOT / ".venv-exports"))).absolute() / "bin" / "python"
