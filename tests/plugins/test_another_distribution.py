"""A distribution that is installed next to Rayscribe trains, prepares, scores and renders with variants of its own.

It is the one that docs/extending.md explains.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.integration.training_trees import WORDS
from tests.test_architecture import ROOT
from tests.trainers.synthetic import content, speechlike
from trainers.config.family_table import FAMILIES
from trainers.data.audio import SAMPLING_RATE_HZ, encode_flac

pytestmark = [pytest.mark.long, pytest.mark.integration, pytest.mark.xdist_group("plugins")]

DISTRIBUTION = Path(__file__).parent / "distribution"
SPLITS = {"train": 24, "validation": 6, "test": 6}
CLUSTER: Mapping[str, Any] = {
    "name": "speech",
    "image": "registry.example.org/rayscribe:1",
    "head": {"instance": "small"},
    "pools": {"spot": {"instance": "large", "spot": True, "max": 4}},
    "storage": "s3://my-speech-runs/rayscribe",
    "ray_up": {"provider": "campus", "project": "speech-lab", "disk_gb": 100},
}


class Result(NamedTuple):
    """What a command came to."""

    code: int
    output: str
    errors: str


class Environment:
    """Processes of an environment in which further distributions may be installed."""

    def __init__(self, site: Path | None = None):
        """Nothing runs.

        Args:
            site: Folder of the further distributions. None: there are none.
        """
        path = [str(site)] if site is not None else []
        self._variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])}

    def rayscribe(self, *arguments: str | Path) -> Result:
        """Runs the command to its end."""
        command = [Path(sys.executable).with_name("rayscribe"), *arguments]
        done = subprocess.run(
            command, env=self._variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
        )
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def plain() -> Environment:
    return Environment()


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the distribution, installed by pip into a folder: this environment stays as it is."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(DISTRIBUTION, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(folder / "site")]
    subprocess.run([*command, str(folder / "source")], check=True, capture_output=True, timeout=600)
    return Environment(folder / "site")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that names a source, a family and a metric of the distribution."""
    folder = tmp_path_factory.mktemp("recipe")
    for split, count in SPLITS.items():
        write_tar(folder / f"{split}.tar", count)
    changes = {
        "run": {"name": "streaming", "storage_path": str(folder / "runs")},
        "data": {"source": {"name": "tar", "options": {split: str(folder / f"{split}.tar") for split in SPLITS}}},
        "model": {"init": "scratch", "family": "gru", "hidden_size": 32, "hidden_layers": 1},
        "training": {"max_steps": 4, "eval_steps": 2, "save_steps": 2, "per_device_train_batch_size": 8},
        "checkpoint": {"checkpoint_score_attribute": "eval_mer", "checkpoint_score_order": "min"},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(changes))
    return path


def write_tar(path: Path, count: int) -> None:
    """Writes recordings of tones, each with a transcript next to it."""
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            flac = encode_flac(speechlike(0.5 + 0.05 * (number % 8), seed=number) / 32768, SAMPLING_RATE_HZ)
            text = WORDS[number % len(WORDS)].encode()
            for name, data in ((f"{number:03d}.flac", flac), (f"{number:03d}.txt", text)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module")
def run_folder(extended: Environment, recipe: Path) -> Path:
    """The folder of a run that was trained."""
    trained = extended.rayscribe("train", recipe, "--no-ray")
    assert trained.code == 0, trained.errors
    assert "prepare train: 24 clips" in trained.output + trained.errors
    return recipe.parent / "runs" / "streaming"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(dict(CLUSTER)))
    return path


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_its_source_is_prepared_and_its_family_trained_and_exported(run_folder: Path) -> None:
    assert read(run_folder / "model" / "config.json")["model_type"] == "gru-ctc"
    lines = [json.loads(line) for line in (run_folder / "evaluation" / "test.jsonl").read_text().splitlines()]
    assert [(line["id"], line["reference"]) for line in lines][:2] == [("000.flac", "red"), ("001.flac", "green")]


def test_its_metric_ranks_checkpoints_and_has_its_own_keys_in_scores(run_folder: Path) -> None:
    score = read(run_folder / "evaluation" / "test.json")
    edits = sum(score[name] for name in ("insertions", "deletions", "substitutions"))
    assert score["aligned_words"] == score["words"] + score["insertions"]
    assert score["mer"] == pytest.approx(100 * edits / score["aligned_words"])
    metrics = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "eval_mer" in line] == [2, 4]
    card = (run_folder / "model" / "README.md").read_text()
    assert "the best checkpoint by eval_mer" in card and "| MER % |" in card


def test_what_was_exported_is_known_by_its_family_and_scored_the_same(
    extended: Environment, recipe: Path, run_folder: Path
) -> None:
    other = recipe.with_name("evaluate.yaml")
    other.write_text(yaml.safe_dump({**yaml.safe_load(recipe.read_text()), "model": {}}))
    done = extended.rayscribe("evaluate", other, "--model", run_folder / "model", "--no-ray")
    assert done.code == 0, done.errors
    (again,) = (recipe.parent / "runs" / "evaluations").iterdir()
    of_run, of_model = (read(folder / "evaluation" / "test.json") for folder in (run_folder, again))
    assert {name: of_model[name] for name in ("wer", "mer", "loss")} == {
        name: of_run[name] for name in ("wer", "mer", "loss")
    }


def test_its_metric_scores_the_output_of_any_system(extended: Environment, plain: Environment, tmp_path: Path) -> None:
    (tmp_path / "references.txt").write_text("one two\n")
    (tmp_path / "hypotheses.txt").write_text("one three four\n")
    arguments = ("score", tmp_path / "hypotheses.txt", "--reference", tmp_path / "references.txt", "--json")
    score = json.loads(extended.rayscribe(*arguments).output)["total"]
    assert (score["wer"], score["mer"], score["aligned_words"]) == (100.0, pytest.approx(200 / 3), 3)
    assert "mer" not in json.loads(plain.rayscribe(*arguments).output)["total"]


def test_its_cloud_is_rendered_and_what_was_rendered_is_valid(
    extended: Environment, spec: Path, tmp_path: Path
) -> None:
    rendered = extended.rayscribe("cluster", "render", spec, "--target", "ray-up")
    assert rendered.code == 0, rendered.errors
    file = yaml.safe_load(rendered.output)
    assert file["provider"]["module"] == "campus_nodes.CampusNodeProvider"
    machine = {"flavor": "large", "disk_gb": 100, "preemptible": True}
    assert file["available_node_types"]["spot"]["node_config"] == machine
    (tmp_path / "campus.yaml").write_text(rendered.output)
    valid = extended.rayscribe("cluster", "validate", tmp_path / "campus.yaml")
    assert valid.code == 0, valid.output
    (tmp_path / "campus.yaml").write_text(rendered.output.replace("disk_gb: 100", "disk_gb: 3000"))
    broken = extended.rayscribe("cluster", "validate", tmp_path / "campus.yaml", "--json")
    assert broken.code == 2 and "campus-disks" in broken.output and "2000 GB" in broken.output


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        ({"checkpoint": {}}, f"model.family: must be one of {', '.join(FAMILIES)} (got 'gru')"),
        (
            {"model": content()["model"]},
            "eval_mer is not a score that ranks checkpoints: give one of eval_wer, eval_cer",
        ),
        ({"model": content()["model"], "checkpoint": {}}, "data.source.name: 'tar' is not a data source here"),
    ],
)
def test_without_it_a_recipe_is_refused_by_the_name_that_is_unknown(
    plain: Environment, recipe: Path, tmp_path: Path, known: Mapping[str, Any], problem: str
) -> None:
    changed = tmp_path / "recipe.yaml"
    changed.write_text(yaml.safe_dump({**yaml.safe_load(recipe.read_text()), **known}))
    refused = plain.rayscribe("preflight", changed)
    assert refused.code in (2, 26) and problem in refused.output + refused.errors


def test_without_it_a_cluster_is_refused_by_its_provider(plain: Environment, spec: Path) -> None:
    refused = plain.rayscribe("cluster", "render", spec, "--target", "ray-up")
    assert refused.code == 2
    assert "ray_up.provider: must be one of 'local', 'aws'" in refused.errors and "(got 'campus')" in refused.errors
