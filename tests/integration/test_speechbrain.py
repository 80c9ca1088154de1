"""Recipes of SpeechBrain through `rayscribe launch`, on two nodes that share no folder but the storage.

`make speechbrain` makes their environment; RAYSCRIBE_TEST_SPEECHBRAIN names another one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.page_run import PageRun
from tests.integration.driver_process import RayHead
from tests.integration.launch_user import LaunchUser, two_nodes
from tests.programs.known_programs import KnownProgram
from tests.settings import setting
from trainers.config.storage_location import StorageOptions
from trainers.run_folder.journal import Checkpoint
from trainers.storage import open_storage

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "speechbrain.md"
INSTALLING = ("make ", "export ", "cp -r ")
RECIPES = ROOT / "tests" / "programs" / "speechbrain"
ENVIRONMENT = Path(setting("RAYSCRIBE_TEST_SPEECHBRAIN", str(ROOT / ".venv-speechbrain")))
# Where there are no GPUs.
ON_CPU = ("--device=cpu", "--distributed_backend=gloo")
EPOCH = re.compile(r"^epoch: (\d+).* - train loss: .* - valid loss: .*valid WER: \S+$", re.MULTILINE)
# In the log of a worker, which the driver's log repeats.
BEGUN = re.compile(r"^\[rank-0\] .*Going into epoch 1$", re.MULTILINE)
CONTINUED = "Loading a checkpoint from results/"


@dataclass(frozen=True)
class Recipe(KnownProgram):
    """A recipe, in a folder with all others and the recordings.

    Attributes:
        speech: The recordings.
        pretrained: What else is in the folder, by its name: a part of what the recipe begins with.
    """

    speech: Path = Path()
    pretrained: tuple[tuple[str, Path], ...] = ()

    def copy_to(self, folder: Path) -> Path:
        shutil.copytree(RECIPES, folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(self.speech, folder / "fsdd")
        for name, path in self.pretrained:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, folder / name)
        return folder


def recipe(name: str, *overrides: str, speech: Path, pretrained: tuple[tuple[str, Path], ...] = ()) -> Recipe:
    """A recipe with overrides of its hyperparameters; it does not wait for a file as other programs of tests do."""
    command = (f"{name}.py", f"hparams/{name}.yaml", "--data_folder=fsdd", *overrides, *ON_CPU)
    return Recipe((), command, "", 0, lambda out: True, lambda out: {}, CONTINUED, speech=speech, pretrained=pretrained)


@pytest.fixture(scope="module")
def python() -> str:
    found = ENVIRONMENT / "bin" / "python"
    if not found.exists():
        pytest.skip(f"{found} is not there: run `make speechbrain`")
    return str(found.absolute())


@pytest.fixture(scope="module")
def trained(python: str, speech_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of an encoder, a decoder and a language model."""
    made = recipe("train_seq2seq", speech=speech_data / "fsdd")
    folder = made.copy_to(tmp_path_factory.mktemp("trained") / "folder")
    done = subprocess.run([python, *made.command], cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return max(folder.glob("results/seq2seq/1986/save/CKPT+*"))


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    with two_nodes() as found:
        yield found


@pytest.fixture
def bucket(s3_bucket: str, s3_endpoint: str, trained: Path) -> tuple[str, str]:
    """A bucket and its server; what was trained is in its folder `trained`."""
    open_storage(f"{s3_bucket}/trained", StorageOptions(s3_endpoint)).upload_folder(trained, "")
    return s3_bucket, s3_endpoint


class RecipeUser(LaunchUser):
    """A user of a recipe, whose environment has no Rayscribe."""

    def submit(self, python: str) -> None:
        code, output = self.launch(self.program.command, "--submit", "--python", python)
        assert code == 0, output

    @property
    def _held(self) -> Checkpoint | None:
        return next(iter(self.journal.read().checkpoints), None)

    def goes_on_after(self, kill: Callable[[], None]) -> None:
        """Until the program goes on from a checkpoint after something was killed, once it had the first one."""
        self.until_held()
        before = self.logs.count(CONTINUED)
        kill()
        self.until(lambda: self.logs.count(CONTINUED) > before, "restart")

    def scores(self, into: Path) -> tuple[list[int], float]:
        """The epochs in the log of training, and the WER of the test, as the run folder has them."""
        (folder,) = {path.parent for path in self.outputs(into).rglob("train_log.txt")}
        (wer,) = re.findall(r"^%WER (\S+) \[ \d+ / 200,", (folder / "wer_test.txt").read_text(), re.MULTILINE)
        return [int(number) for number in EPOCH.findall((folder / "train_log.txt").read_text())], float(wer)


def test_a_ctc_recipe_goes_on_from_its_own_checkpoints(
    python: str, trained: Path, head: RayHead, bucket: tuple[str, str], speech_data: Path, tmp_path: Path
) -> None:
    # Its encoder is in the bucket, from which each node fetches it, and the tokenizer next to the recipe.
    sources = (f"--pretrained={{s3:{bucket[0].removeprefix('s3://')}/trained/}}", "--pretrained_tokenizer=pretrained")
    beside = (("pretrained/tokenizer.ckpt", trained / "tokenizer.ckpt"),)
    made = recipe("train_ctc", *sources, speech=speech_data / "fsdd", pretrained=beside)
    run = RecipeUser(made, head, tmp_path, "ctc", bucket)
    run.submit(python)
    run.goes_on_after(run.kill_worker)
    run.goes_on_after(run.kill_driver)
    assert "WER " in run.finish()
    assert len(BEGUN.findall(run.logs)) == 1
    epochs, wer = run.scores(tmp_path / "kept")
    assert sorted(set(epochs)) == [1, 2, 3, 4, 5, 6, 7]
    assert wer < 30


def test_a_recipe_that_fine_tunes_a_language_model_goes_on_from_its_own_checkpoints(
    python: str, trained: Path, head: RayHead, bucket: tuple[str, str], speech_data: Path, tmp_path: Path
) -> None:
    sources = (f"--pretrained_asr={{s3:{bucket[0].removeprefix('s3://')}/trained/}}", "--pretrained_lm=pretrained")
    beside = (("pretrained/lm.ckpt", trained / "lm.ckpt"),)
    made = recipe("finetune_lm", *sources, speech=speech_data / "fsdd", pretrained=beside)
    run = RecipeUser(made, head, tmp_path, "lm", bucket)
    run.submit(python)
    run.goes_on_after(run.kill_worker)
    assert "WER " in run.finish()
    assert len(BEGUN.findall(run.logs)) == 1
    epochs, wer = run.scores(tmp_path / "kept")
    assert sorted(set(epochs)) == [1, 2, 3, 4]
    assert wer < 50


def test_each_line_of_the_page_does_what_it_shows(python: str, speech_data: Path, tmp_path: Path) -> None:
    folder = recipe("train_ctc", speech=speech_data / "fsdd").copy_to(tmp_path / "digits")
    home = tmp_path / "home"
    home.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "HOME": str(home), "RAYSCRIBE_HOME": str(home / "rayscribe"), "PY": python, "PATH": path}
    reader = PageRun(folder, variables, {folder: "/home/ana/digits", home: "/home/ana"}, INSTALLING)
    try:
        reader.run(PAGE)
    finally:
        # Where the page's own line was not reached.
        reader.result_of("rayscribe cluster down local --force")
