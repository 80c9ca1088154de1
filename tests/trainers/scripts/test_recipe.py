from pathlib import Path
from typing import Any

import pytest
import yaml

from trainers.config.flags.task_line import TaskArguments
from trainers.config.loader import build_any_config
from trainers.config.schema import ScriptConfig
from trainers.errors import ConfigError
from trainers.main import config_of
from trainers.scripts.outputs.output_folder import NOT_NAMED
from trainers.scripts.recipe import resolve_program


def resolved(command: Any, **parts: Any) -> ScriptConfig:
    content = {"trainer": "script", "script": {"command": command, **parts.pop("script", {})}, **parts}
    config = build_any_config(resolve_program(content, {"LR": "1e-4"}), origin="test", environment={})
    assert isinstance(config, ScriptConfig)
    return config


def test_a_recipe_without_a_program_stays_as_it_is() -> None:
    assert resolve_program({"data": {"train": "x.csv"}}, {}) == {"data": {"train": "x.csv"}}


def test_what_torchrun_is_told_becomes_part_of_the_recipe() -> None:
    config = resolved("torchrun --nnodes=2 --nproc_per_node=4 --max-restarts 2 train.py hparams.yaml --lr $LR")
    assert config.script.command == ("train.py", "hparams.yaml", "--lr", "1e-4")
    assert (config.scaling.num_workers, config.script.max_restarts) == (8, 2)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("torchrun --nproc_per_node 2 -m a.b x", ["-m", "a.b", "x"]),
        ("torchrun --nproc_per_node 2 --no_python speech-train a.yaml", ["speech-train", "a.yaml"]),
        ("bash run.sh --lr 1", ["bash", "run.sh", "--lr", "1"]),
        ("./run.sh", ["./run.sh"]),
    ],
)  # fmt: skip
def test_resolving_again_changes_nothing(line: str, command: list[str]) -> None:
    content = resolve_program({"trainer": "script", "script": {"command": line}}, {})
    assert content["script"]["command"] == command
    assert resolve_program(content, {}) == content


def test_arguments_are_not_touched() -> None:
    odd = ["train.py", " a  b ", "", "{", '{"a": 1}', "$HOME", "--x='y'"]
    assert list(resolved(["torchrun", "--nproc_per_node", "2", *odd]).script.command) == odd


def test_deepspeeds_local_rank_and_leading_variables_are_kept() -> None:
    config = resolved("OMP_NUM_THREADS=3 deepspeed --num_gpus 2 train.py --deepspeed ds.json")
    assert config.script.env["OMP_NUM_THREADS"] == "3"
    assert config.script.local_rank_option == "--local_rank"
    assert (config.scaling.num_workers, config.scaling.use_gpu) == (2, True)


def test_a_placeholder_that_no_node_could_replace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\{data\} is what script\.prepare writes"):
        resolved("train.py --data_folder {data}")
    assert resolved("train.py {data}", script={"prepare": "make.py {data}"}).script.prepare == ("make.py", "{data}")


def test_a_program_is_not_said_to_begin_from_a_checkpoint_that_it_never_sees() -> None:
    with pytest.raises(ConfigError, match=r"run\.resume is from:s3://b/c, but only the program itself can load"):
        resolved("train.py", run={"resume": "from:s3://b/c"})


@pytest.mark.parametrize("part", [{"script": {"env": ["A=1"]}}, {"scaling": "all"}])
def test_a_part_that_is_none_is_refused_and_not_passed_over(part: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"scaling|env"):
        resolved("B=2 torchrun --nproc_per_node 4 train.py", **part)


def test_a_line_that_contradicts_the_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scaling\.num_workers is 3, and the launcher in script\.command says 4"):
        resolved("torchrun --nproc_per_node 4 train.py", scaling={"num_workers": 3})


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"run": {"seed": 7}}, r"run\.seed is 7, .* such as --seed 7"),
        ({"scaling": {"backend": "gloo"}}, r"scaling\.backend is gloo, .* such as --ddp_backend gloo"),
        ({"script": {"hpu_mode": "lazy"}}, r"script\.hpu_mode is lazy, .* scaling\.accelerator: hpu"),
        ({"script": {"path_prefix": {"/a/": "/b/"}}}, r"path_prefix is only for manifests that placeholders fetch"),
    ],
)
def test_what_a_program_would_never_see_is_refused(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolved("train.py", **parts)


def test_an_interpreter_is_for_python() -> None:
    with pytest.raises(ConfigError, match=r"script\.python is /venv/bin/python, but script\.command begins with bash"):
        resolved("bash run.sh", script={"python": "/venv/bin/python"})
    config = resolved("bash run.sh", script={"python": "/venv/bin/python", "prepare": "python make.py {data}"})
    assert config.script.prepare == ("make.py", "{data}")


def notes_on(line: str, **scaling: Any) -> list[str]:
    notes: list[str] = []
    script = {"command": line, "sync_dir": "out"}
    resolve_program({"trainer": "script", "script": script, "scaling": scaling}, {}, notes.append)
    return notes


def test_where_ray_places_workers_otherwise_than_a_line_says_it_is_said() -> None:
    (note,) = notes_on("torchrun --nnodes 2 --nproc_per_node 4 train.py")
    assert "torchrun says 4 on each node: Ray Train places 8 workers on as few nodes as it can" in note
    (note,) = notes_on("torchrun --nnodes 2 train.py")
    assert "or scaling.placement_strategy is STRICT_SPREAD" in note
    assert notes_on("torchrun --nproc_per_node 4 train.py") == []


def test_a_number_of_workers_that_a_launcher_would_count_is_asked_for() -> None:
    line = "torchrun --nproc_per_node gpu train.py"
    (note,) = notes_on(line)
    assert note.startswith("script.command: torchrun counts devices where it is started")
    assert notes_on(line, num_workers=4) == []


def test_a_program_whose_output_folder_is_not_known_is_told_so_by_the_files_where_it_starts(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "hparams.yaml").write_text("output_folder: results")

    def notes(command: str, **script: str) -> list[str]:
        said: list[str] = []
        content = {"trainer": "script", "script": {"command": command, **script}}
        resolve_program(content, {}, said.append, base=tmp_path)
        return said

    assert notes("torchrun --nproc_per_node 2 train.py hparams.yaml") == notes("bash run.sh") == [NOT_NAMED]
    assert notes("train.py hparams.yaml", working_dir="recipe") == notes("train.py", sync_dir="out") == []


def test_who_resolves_a_line_first_says_what_is_to_be_said_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"trainer": "script", "script": {"command": ["train.py"]}, "run": {"storage_path": "/runs"}}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(content))
    config_of(TaskArguments(recipe))
    assert capsys.readouterr().out.count(NOT_NAMED) == 1
    config_of(TaskArguments(recipe, recipe=content))
    assert NOT_NAMED not in capsys.readouterr().out


def test_python_in_front_of_a_program_says_nothing_of_the_number_of_workers() -> None:
    assert resolved("python train.py", scaling={"num_workers": 4}).scaling.num_workers == 4


def test_a_recipe_by_hand_that_holds_secrets_is_refused_without_repeating_them(tmp_path: Path) -> None:
    recipe = tmp_path / "program.yaml"
    part = {
        "command": ["train.py", "--token", "hunter22"],
        "env": {"A_SECRET": "hunter23"},
        "prepare": "a.py pass=hunter24",
    }
    recipe.write_text(yaml.safe_dump({"trainer": "script", "script": part}))
    with pytest.raises(ConfigError) as caught:
        config_of(TaskArguments(recipe))
    said = str(caught.value)
    assert said.startswith("script: 3 problems\n  - command: --token looks like a credential (not shown)")
    assert "\n  - prepare: pass looks" in said and "\n  - env.A_SECRET looks" in said and "hunter" not in said


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("train.py --auth $HF_TOKEN", ["train.py", "--auth", "${HF_TOKEN}"]),
        ("train.py $DIR --hub_token $P-$X", ["train.py", "/my", "data", "--hub_token", "${P}-${X}"]),
        (
            "bash -c \"cd '$DIR' && python t.py --hub_token $HF_TOKEN\"",
            ["bash", "-c", "cd '/my data' && python t.py --hub_token ${HF_TOKEN}"],
        ),
        ("train.py --use $USE_TOKEN --data $PWD", ["train.py", "--use", "True", "--data", "/here"]),
    ],
)
def test_of_a_line_s_variables_those_that_stand_for_secrets_stay_references(line: str, command: list[str]) -> None:
    variables = {"HF_TOKEN": "s3cr3t", "P": "s3cr3t", "X": "1", "DIR": "/my data", "USE_TOKEN": "True", "PWD": "/here"}
    assert resolve_program({"script": {"command": line}}, variables)["script"]["command"] == command
