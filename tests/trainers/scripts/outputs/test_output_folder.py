"""The output folder is found where the program itself finds it."""

import json
from pathlib import Path

import pytest

from trainers.scripts.outputs.output_folder import output_folder_of

HPARAMS = """\
# Seed needs to be set at top of yaml
seed: 1986
__set_seed: !apply:speechbrain.utils.seed_everything [!ref <seed>]
output_folder: !ref results/CTC/<seed>/<names[first]><data.language>
save_folder: !ref <output_folder>/save
data_folder: !PLACEHOLDER
data:
    language: sr
names: {first: a-}
checkpointer: !new:speechbrain.utils.checkpoints.Checkpointer
    checkpoints_dir: !ref <save_folder>
    recoverables: {model: !ref <model>}
model: !new:torch.nn.ModuleList [[!ref <seed>]]
act: !name:torch.nn.LeakyReLU
lr: 1.0e-3
"""


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["train.py", "--output_dir", "out"], "out"),
        (["train.py", "--output-dir=out/a", "--do_train"], "out/a"),
        (["train.py", "--output_dir=first", "--output_dir", "last"], "last"),
        (["train.py", "--save_dir", "here", "--logging_dir", "logs"], "here"),
        (["train.py", "--logging_dir", "logs", "--output_folder=there"], "there"),
        (["train.py", "exp_dir=conf"], "conf"),
        (["train.py", "--output_dir", "/absolute/out"], "/absolute/out"),
        (["train.py", "--output_dir", "--do_train"], None),
        (["train.py", "--output_dir"], None),
        (["train.py", "--output_dir="], None),
        (["train.py", "--output_dir", "s3://bucket/out"], None),
        (["train.py", "absent.yaml", "--lr", "1"], None),
    ],
)
def test_arguments_name_it(tmp_path: Path, words: list[str], folder: str | None) -> None:
    assert output_folder_of(words, tmp_path) == (None if folder is None else tmp_path / folder)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "results/CTC/1986/a-sr"),
        (["--data_folder=/d", "--seed=7"], "results/CTC/7/a-sr"),
        (["--seed", "7"], "results/CTC/7/a-sr"),
        (["--output_folder", "mine"], "mine"),
        (["--output_folder=/mine/<seed>"], "/mine/1986"),
    ],
)
def test_hyperparameters_of_speechbrain_name_it(tmp_path: Path, words: list[str], folder: str) -> None:
    (tmp_path / "hparams").mkdir()
    (tmp_path / "hparams/train.yaml").write_text(HPARAMS)
    assert output_folder_of(["train.py", "hparams/train.yaml", *words], tmp_path) == tmp_path / folder


@pytest.mark.parametrize(
    "text",
    [
        "output_folder: !ref <a>\na: !ref <output_folder>",
        "output_folder: !PLACEHOLDER",
        "output_folder: !ref <absent>/a",
        "output_folder: !ref <a>/b\na: [1]",
        "output_folder: !apply:os.getcwd []",
        "output_folder: [",
        "- output_folder",
        "output_folder: 7",
        "a: &a [*a]\noutput_folder: !ref <a>",
        "\x00",
    ],
)
def test_one_that_only_the_program_knows_is_not_guessed(tmp_path: Path, text: str) -> None:
    (tmp_path / "h.yaml").write_text(text)
    assert output_folder_of(["train.py", "h.yaml"], tmp_path) is None


def test_a_file_of_the_trainers_arguments_names_it(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"output_dir": "out", "do_train": True}))
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert output_folder_of(["train.py", "args.json"], tmp_path) == tmp_path / "out"
    assert output_folder_of(["train.py", "args.json", "--deepspeed", "ds.json"], tmp_path) == tmp_path / "out"


def test_tags_run_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"output_folder: out\nx: !!python/object/apply:pathlib.Path.touch [{made}]\ny: !apply:os.mkdir [{made}]\n"
    (tmp_path / "h.yaml").write_text(text)
    assert output_folder_of(["train.py", "h.yaml"], tmp_path) == tmp_path / "out"
    assert not made.exists()


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["train.py", "args.json"], "of json"),
        (["train.py", "--config=args.json"], "of json"),
        (["train.py", "args.json", "--output_dir", "mine"], "mine"),
        (["train.py", "@args.txt"], "of text"),
        (["train.py", "@args.txt", "--output_dir=mine"], "mine"),
        (["train.py", "--handle", "@nobody"], None),
        (["run.py", "--do_train"], "beside"),
        (["run.py", "--output_dir", "mine"], "mine"),
    ],
)
def test_files_of_arguments_name_it(tmp_path: Path, words: list[str], folder: str | None) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"output_dir": "of json", "do_train": True}))
    (tmp_path / "args.txt").write_text("--output_dir\nof text\n--do_train\n")
    (tmp_path / "run.args").write_text("--do_eval\n--output_dir beside")
    assert output_folder_of(words, tmp_path) == (None if folder is None else tmp_path / folder)
