"""Settings of the tests, from the environment; an empty variable counts as unset."""

import os
import sys
from pathlib import Path

DEFAULT_SPEECH_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DEFAULT_WEIGHTS = Path(__file__).resolve().parents[1] / ".weights"
# Services that `make setup` installs with npm.
NODE_PACKAGES = Path(sys.prefix) / "services" / "node_modules"
# Share of the examples of property tests, and of the API's description, that a profile tries.
PROFILES = {"full": 1.0, "quick": 0.1}


def setting(name: str, default: str) -> str:
    """A variable's value, or the default where it is unset or empty."""
    return os.environ.get(name) or default


def speech_data() -> Path:
    """Where recorded speech is looked for; it may be absent."""
    return Path(setting("RAYSCRIBE_TEST_DATA", str(DEFAULT_SPEECH_DATA)))


def real_weights() -> Path:
    """Where `make real` writes pretrained weights, a folder for each model; it may be absent."""
    return Path(setting("RAYSCRIBE_TEST_WEIGHTS", str(DEFAULT_WEIGHTS)))


def is_full() -> bool:
    """Whether every example is tried."""
    return setting("RAYSCRIBE_TEST_PROFILE", "full") == "full"


def examples(full: int) -> int:
    """How many examples a test tries: `full`, or fewer under RAYSCRIBE_TEST_PROFILE=quick.

    Raises:
        KeyError: there is no such profile.
    """
    return max(1, round(full * PROFILES[setting("RAYSCRIBE_TEST_PROFILE", "full")]))
