"""`import rayscribe`: what Python programs call, and the packages below that name."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rayscribe
from runtime_env.own_code import VERSION
from tests.trainers.synthetic import content, write_corpus
from trainers.config.schema import TrainConfig

ROOT = Path(__file__).parents[1]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe whose paths are relative, next to its data."""
    folder = tmp_path / "speech"
    folder.mkdir()
    for split in ("train", "validation"):
        write_corpus(folder, ["red", "green", "blue"], durations_s=[0.3, 0.4, 0.5], name=split)
    changes = {"run": {"storage_path": "runs"}, "data": {"train": "train.csv", "validation": "validation.csv"}}
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(content({**changes, "training.max_steps": 2})))
    return path


def test_a_config_has_the_paths_of_its_recipe_and_the_values_of_overrides(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"training.learning_rate": 3e-5, "data.test": Path("test.csv"), "run.name": "mine"}
    changes |= {"training.training_args": {"adam_epsilon": 1e-7}, "data.normalizer": None}
    config = rayscribe.load_config("speech/my.yaml", changes)
    assert isinstance(config, TrainConfig)
    assert (config.training.learning_rate, config.run.name) == (3e-5, "mine")
    assert (config.training.training_args, config.data.normalizer) == ({"adam_epsilon": 1e-7}, None)
    assert config.run.storage_path == str(recipe.parent / "runs")
    assert (config.data.train, config.data.test) == (str(recipe.parent / "train.csv"), str(tmp_path / "test.csv"))
    assert rayscribe.load_config(config, {"training.max_steps": 3}).training.max_steps == 3


def test_prepared_sets_are_given_by_split(recipe: Path) -> None:
    sets = rayscribe.prepare(recipe, ray=False)
    assert {split: prepared.summary.prepared for split, prepared in sets.items()} == {"train": 3, "validation": 3}
    assert next(iter(sets.values())).url.startswith(str(recipe.parent / "runs"))


def test_a_model_is_named_by_its_run(recipe: Path) -> None:
    message = "model no-such-run: no run is named no-such-run"
    with pytest.raises(rayscribe.RayscribeError, match=message):
        rayscribe.transcribe("no-such-run", ["talk.wav"])
    with pytest.raises(rayscribe.RayscribeError, match=message):
        rayscribe.evaluate(recipe, model="no-such-run")


def test_an_interrupted_import_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.cli.main", interrupted)
    assert rayscribe.main() == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_every_problem_of_a_recipe_is_in_one_error(recipe: Path) -> None:
    with pytest.raises(rayscribe.RayscribeError, match=r"(?s)max_steps.*learning_rte"):
        rayscribe.load_config(recipe, {"training.max_steps": "many", "training.learning_rte": 1})
    program = recipe.with_name("program.yaml")
    program.write_text(yaml.safe_dump({"trainer": "script", "script": {"command": ["train.py"]}}))
    with pytest.raises(rayscribe.RayscribeError, match="trainer is script: `rayscribe launch`"):
        rayscribe.train(program)


def test_in_the_repository_the_packages_below_it_are_those_at_the_root(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from rayscribe.trainers.models.family import Family as below\n"
        "from trainers.models.family import Family\n"
        "import trainers.config.schema, rayscribe.trainers.config.schema as schema\n"
        "assert below is Family and schema is trainers.config.schema\n"
        "assert schema.__spec__.name == schema.__name__ == 'trainers.config.schema'\n"
        "try:\n    import rayscribe.trainers.nothing\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "No module named 'rayscribe.trainers.nothing'\n"


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rayscribe", "--version"])
    assert rayscribe.main() == 0
    assert capsys.readouterr().out == f"rayscribe {VERSION}\n"
