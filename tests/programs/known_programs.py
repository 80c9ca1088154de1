"""The programs of this folder as tests run them: their arguments, and how to read what they leave."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.programs.make_data import write_data, write_models

HERE = Path(__file__).parent
DATA, MODELS, OUT = "data", "models", "out"
STEPS = 20
LOGGED_STEP = re.compile(r"step (\d+) loss (\S+)")


@dataclass(frozen=True)
class KnownProgram:
    """A program that knows nothing of who starts it.

    Attributes:
        files: What lies in its user's folder, next to the data.
        command: The program and its arguments.
        hold: Arguments by which it waits in the middle of its training, with a checkpoint, for a file.
        held_at: The step in a run's journal of the last checkpoint that it has written when it waits.
        is_saved: Whether its first checkpoint is complete, in its output folder `OUT`.
        losses: Of each step, by that folder.
        goes_on: What it prints before the path of the checkpoint from which it continues.
        checkpoints: Pattern of its checkpoints, where it is no known one.
    """

    files: tuple[str, ...]
    command: tuple[str, ...]
    hold: str
    held_at: int
    is_saved: Callable[[Path], bool]
    losses: Callable[[Path], Mapping[int, float]]
    goes_on: str
    checkpoints: str = "auto"

    def copy_to(self, folder: Path) -> Path:
        """Makes a folder with the program and its data, and nothing else."""
        write_data(folder / DATA)
        for name in self.files:
            shutil.copyfile(HERE / name, folder / name)
        if "--model_name_or_path" in self.command:
            write_models(folder / MODELS)
        return folder

    def holding(self, file: Path) -> tuple[str, ...]:
        """The command, with what makes it wait for a file."""
        return (*self.command, *self.hold.format(file=file).split())


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _is_transformers_saved(out: Path) -> bool:
    files = ("trainer_state.json", "rng_state_0.pth", "rng_state_1.pth")
    return all((out / f"checkpoint-{STEPS // 2}" / name).is_file() for name in files)


def _transformers_losses(out: Path) -> Mapping[int, float]:
    history = json.loads((out / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["loss"] for entry in history if "loss" in entry}


def _ddp_losses(out: Path) -> Mapping[int, float]:
    return {entry["step"]: entry["loss"] for entry in json.loads((out / "log.json").read_text())}


def _recipe_losses(out: Path) -> Mapping[int, float]:
    """Of steps that were made again after a restart, the last."""
    return {int(step): float(loss) for step, loss in LOGGED_STEP.findall((out / "log.txt").read_text())}


TRAINER = (
    f"--output_dir {OUT} --cache_dir cache --do_train --do_eval --max_steps {STEPS} --save_steps {STEPS // 2} "
    "--logging_steps 1 --per_device_train_batch_size 4 --per_device_eval_batch_size 4 --learning_rate 1e-2 "
    "--report_to none --use_cpu --disable_tqdm True --seed 7"
)
SEQ2SEQ = KnownProgram(
    files=("run_speech_recognition_seq2seq.py",),
    command=_words(
        f"run_speech_recognition_seq2seq.py --model_name_or_path {MODELS}/seq2seq --train_file {DATA}/train.csv "
        f"--validation_file {DATA}/valid.csv --test_file {DATA}/test.csv {TRAINER} --do_predict "
        "--predict_with_generate --generation_max_length 32"
    ),
    hold="--hold_at_step 12 --hold_until {file}",
    held_at=STEPS // 2,
    is_saved=_is_transformers_saved,
    losses=_transformers_losses,
    goes_on="Checkpoint detected, resuming training at ",
)
CTC = KnownProgram(
    files=("run_speech_recognition_ctc.py",),
    command=_words(
        f"run_speech_recognition_ctc.py --model_name_or_path {MODELS}/ctc --train_file {DATA}/train.json "
        f"--validation_file {DATA}/valid.json {TRAINER} --gaudi_config_name Habana/wav2vec2 "
        "--throughput_warmup_steps 3 --sdp_on_bf16 --use_lazy_mode --use_hpu_graphs_for_training"
    ),
    hold="--hold_at_step 12 --hold_until {file}",
    held_at=STEPS // 2,
    is_saved=_is_transformers_saved,
    losses=_transformers_losses,
    goes_on="Checkpoint detected, resuming training at ",
)
DDP = KnownProgram(
    files=("ddp.py",),
    command=_words(f"ddp.py --data {DATA} --output-dir {OUT} --epochs 5"),
    hold="--hold-at-step 10 --hold-until {file}",
    # It counts epochs.
    held_at=2,
    is_saved=lambda out: (out / "checkpoint_epoch_2").is_dir(),
    losses=_ddp_losses,
    goes_on="resumed from ",
    checkpoints="checkpoint_epoch_*",
)
RECIPE = KnownProgram(
    files=("train.py", "digits_prepare.py", "hparams_file.py", "hparams.yaml"),
    command=_words(f"train.py hparams.yaml --distributed_backend=gloo --data_folder={DATA} --output_folder={OUT}"),
    hold="--hold_at_step=12 --hold_until={file}",
    held_at=9,
    is_saved=lambda out: len(list(out.glob("save/CKPT+*/dataloader-TRAIN.ckpt"))) >= 2,
    losses=_recipe_losses,
    goes_on="Loading a checkpoint from ",
)
PROGRAMS = {"seq2seq": SEQ2SEQ, "ctc": CTC, "ddp": DDP, "recipe": RECIPE}
