"""Fixtures that every test may use, and how many examples property tests try."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests import settings
from trainers.storage.own_folder import own_temporary_folder

pytest_plugins = ["tests.object_stores", "tests.s3", "tests.web", "tests.hub", "tests.postgres", "tests.hosts.summary"]

# Runs that tests start are not in the list of whoever runs them.
STATE = tempfile.TemporaryDirectory(prefix="rayscribe-state-")
os.environ.setdefault("RAYSCRIBE_HOME", STATE.name)
# Threads of one process that wait for one another keep the cores from the other processes; torch reads it on import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# DeepSpeed's operators, which take half a minute to compile: once for all tests, also those with a temporary folder of
# their own.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(own_temporary_folder("operators")))
# As where the environment is activated: two versions of ninja would compile them again for each other.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# Tests that a shell starts in the background ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Values of parameters by which a test needs a service that starts for it; of buckets, the quick level keeps S3's.
SERVICES = {"az", "gs", "postgres"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leaves the tests of these services to the level of CI."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and SERVICES & {value for value in callspec.params.values() if isinstance(value, str)}:
        item.add_marker(pytest.mark.integration)


def pytest_collection_finish() -> None:
    """Keeps garbage collections, which each training asks for twice, from going through all modules and tests."""
    gc.collect()
    gc.freeze()


EXAMPLES = 100
hypothesis.settings.register_profile("rayscribe", deadline=None, max_examples=settings.examples(EXAMPLES))
hypothesis.settings.load_profile("rayscribe")


@pytest.fixture(scope="session")
def speech_data() -> Path:
    """The folder of recorded speech that RAYSCRIBE_TEST_DATA names; the test skips where it is absent."""
    folder = settings.speech_data()
    if not folder.is_dir():
        pytest.skip(f"no recorded speech at {folder}: set RAYSCRIBE_TEST_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def hub_whisper(speech_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as whisper-tiny's on the Hub: the true vocabulary and generation config, tiny sizes, random weights."""
    tool = speech_data.parent / "tools" / "whisper_like_the_hub.py"
    if not tool.is_file():
        pytest.skip(f"no {tool}, which makes such a folder")
    folder = tmp_path_factory.mktemp("hub") / "whisper"
    subprocess.run(
        [sys.executable, str(tool), str(folder), "--d-model", "64", "--layers", "1"], check=True, capture_output=True
    )
    return folder
