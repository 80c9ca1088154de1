"""The wheel, installed where the repository is not: imported whole, and runs submitted to a Ray without Rayscribe."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from runtime_env.own_code import VERSION
from tests.built_wheel import PACKAGES, build_wheel
from tests.integration.training_trees import WORDS
from tests.trainers.synthetic import content, write_corpus
from trainers.distributed.local_ray import LocalRay, start_ray, without_ray_settings

pytestmark = pytest.mark.long

# All of them, where the names of the repository mean nothing.
IMPORT_ALL = f"""
import importlib, pkgutil, sys
import rayscribe
names = [each.name for each in pkgutil.walk_packages(rayscribe.__path__, "rayscribe.")]
for name in names:
    importlib.import_module(name)
assert not {set(PACKAGES)!r} & sys.modules.keys()
print(rayscribe.__file__, len(names), rayscribe.__version__)
"""
METRIC = """from rayscribe.trainers.scoring.metrics import ErrorRates


class Mine(ErrorRates):
    pass
"""


class Environment:
    """A virtual environment with the packages of this one, but without Rayscribe."""

    def __init__(self, folder: Path):
        """Makes it; with a home that is empty, too."""
        self.folder, self.home = folder / "environment", folder / "home"
        venv.create(self.folder, symlinks=True)
        self.home.mkdir()
        self.python = self.folder / "bin" / "python"
        # A path in a .pth file brings what lies there, and not the editable installations that it has .pth files of.
        (self.site / "packages.pth").write_text(sysconfig.get_path("purelib"))

    @property
    def site(self) -> Path:
        return next((self.folder / "lib").glob("python*/site-packages"))

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in without_ray_settings().items() if not name.startswith("RAYSCRIBE_")}
        kept.pop("PYTHONPATH", None)
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "HOME": str(self.home), "PATH": path}

    def run(self, *command: str | Path, folder: Path) -> str:
        """Runs a program of the environment to its end; gives what it prints."""
        done = subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A user's environment, in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("user")
    environment = Environment(folder)
    options = ["--no-deps", "--no-index", "--ignore-installed", "--quiet", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "--python", str(environment.python), "install", *options]
    subprocess.run([*install, str(build_wheel(folder / "built"))], check=True, capture_output=True, timeout=300)
    return environment


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """A Ray whose nodes have everything but Rayscribe."""
    nodes = Environment(tmp_path_factory.mktemp("nodes"))
    with pytest.MonkeyPatch.context() as here:
        here.setattr(sys, "executable", str(nodes.python))
        found = start_ray(num_cpus=4, environment=nodes.variables, outlives_us=True)
    try:
        found.wait_for_agent()
        yield found
    finally:
        found.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with recordings, their manifests, a metric, and a recipe that names them by relative paths."""
    own = tmp_path / "speech"
    for split, count in (("train", 8), ("validation", 2)):
        texts = [WORDS[number % len(WORDS)] for number in range(count)]
        write_corpus(own / "data", texts, durations_s=[0.4] * count, name=split)
    changes = {
        "run": {"name": "anywhere"},
        "data": {"train": "data/train.csv", "validation": "data/validation.csv"},
        "scoring": {"metrics": {"deletions": "my_metrics:Mine"}},
        "training": {"max_steps": 2, "eval_steps": 2, "save_steps": 2},
        "decode": {"max_length": 4},
    }
    (own / "my_metrics.py").write_text(METRIC)
    (own / "my.yaml").write_text(yaml.safe_dump(content(changes)))
    return own


def test_each_module_of_it_is_imported_where_the_names_of_the_repository_mean_nothing(
    user: Environment, tmp_path: Path
) -> None:
    where, count, version = user.run("python", "-c", IMPORT_ALL, folder=tmp_path).split()
    assert (where, version) == (str(user.site / "rayscribe" / "__init__.py"), VERSION)
    assert int(count) > 300


def test_a_recipe_is_trained_from_a_folder_with_nothing_but_it_and_its_data(
    user: Environment, ray: LocalRay, folder: Path
) -> None:
    assert {path.name for path in user.site.iterdir() if path.is_dir() and not path.suffix} == {"rayscribe"}
    assert user.run("rayscribe", "--version", folder=folder) == f"rayscribe {VERSION}\n"
    storage = folder.parent / "runs"
    options = ["--address", ray.dashboard, "--set", f"run.storage_path={storage}", "--follow"]
    output = user.run("rayscribe", "submit", "my.yaml", *options, folder=folder)
    assert f"on validation (2 utterances) · normalizer basic 1 · {storage}/anywhere" in output
    assert (storage / "anywhere" / "model" / "config.json").is_file()
    metrics = [json.loads(line) for line in (storage / "anywhere" / "metrics.jsonl").read_text().splitlines()]
    assert any("eval_deletions" in line for line in metrics)
