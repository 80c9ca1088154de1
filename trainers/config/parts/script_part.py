"""The config's script part: the program that every worker runs, unmodified. See `schema`."""

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator

from trainers.config.parts.part import VARIABLE, Part, Positive, rule

Words = Annotated[tuple[Annotated[str, StringConstraints(strip_whitespace=False)], ...], Field(min_length=1)]


def is_python(words: Sequence[str]) -> bool:
    """Returns True if a Python interpreter runs the command."""
    return words[0] == "-m" or words[0].endswith(".py")


class ScriptPart(Part):
    """A program that torchrun could start, and which of its outputs are kept."""

    command: Words = Field(
        description="The program and its arguments, a word each: [train.py, --lr, 1e-4], [-m, package.train], or a "
        "program that is no Python. A whole line as people have it is taken, too, with its launcher: `torchrun "
        "--nproc_per_node 4 train.py --lr 1e-4`; what the launcher is told becomes part of the recipe."
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="Interpreter of the program on each node, such as /opt/venv/bin/python; it needs no Rayscribe. "
        "null: that of Ray's workers.",
    )
    working_dir: str | None = Field(
        None, min_length=1, description="Subfolder of the package in which the program runs. null: the package itself."
    )
    env: dict[Annotated[str, StringConstraints(pattern=VARIABLE)], str] = Field(
        {}, description="Variables of the program; no secrets, which job.runtime_env.secrets brings by reference."
    )
    prepare: Words | None = Field(
        None,
        description="A command that runs once per run, before the program; what it writes into the folder {data} "
        "(RAYSCRIBE_DATA) is on every node then. null: nothing is prepared.",
    )
    sync_dir: str | None = Field(
        None,
        min_length=1,
        description="Folder of the program's output, which is kept in the run folder. null: as its arguments name it "
        "(--output_dir, --output_folder, or hparams.yaml's output_folder).",
    )
    checkpoints: str = Field(
        "auto",
        min_length=1,
        description="Which folders in it are checkpoints. auto: those of transformers and SpeechBrain; else a pattern, "
        "as epoch_*.",
    )
    num_to_keep: Positive | None = Field(
        3, description="Keep this many of the newest checkpoints, and the best by each score. null: keep all."
    )
    path_prefix: dict[str, str] = Field(
        {}, description="Begins of paths in manifests that are fetched, and what to read instead: {/home/a/: s3://b/}."
    )
    max_restarts: int = Field(
        0,
        ge=0,
        le=1000,
        description="How often the workers start again, within an attempt, after the program has failed by itself. "
        "Lost workers and nodes are restarted in any case, see run.max_failures.",
    )
    stop_grace_s: Positive = Field(
        90, le=3600, description="How long the program may take to save after SIGTERM, before it is killed. Seconds."
    )
    local_rank_option: str | None = Field(
        None,
        pattern=r"^--?[A-Za-z][A-Za-z0-9_-]*$",
        description="An option that each process gets in front of its arguments with `=` and its local rank, as "
        "deepspeed gives it. null: the program reads LOCAL_RANK.",
    )
    hpu_mode: Literal["lazy", "eager"] | None = Field(
        None, description="How a Gaudi accelerator executes. null: as the image says."
    )

    @field_validator("working_dir", "sync_dir")
    @classmethod
    def _inside(cls, folder: str | None) -> str | None:
        if folder is not None and ".." in PurePosixPath(folder).parts:
            raise ValueError("leads out of the package: name a folder in it, without ..")
        return folder

    @field_validator("working_dir")
    @classmethod
    def _below(cls, folder: str | None) -> str | None:
        if folder is not None and PurePosixPath(folder).is_absolute():
            raise ValueError("is no folder of the package: give its path below the folder in which you submit")
        return folder

    @rule
    def _names_a_program(self) -> Self:
        if self.command[0] == "-m" and len(self.command) == 1:
            raise ValueError("command: -m names no module: write [-m, package.module, …]")
        return self

    @property
    def is_python(self) -> bool:
        """True if a Python interpreter runs the program."""
        return is_python(self.command)

    def python_problem(self, machine: str) -> str | None:
        """Returns a message if this machine, which is to run the program, has no interpreter at the given path.

        None: it has one, or the interpreter is looked up elsewhere: in the package, or in the PATH of a node.
        """
        path = self.python or ""
        if not self.is_python or not path.startswith("/") or os.access(path, os.X_OK):
            return None
        return (
            f"script.python: {path} is no program of {machine}, where it is to run: give an interpreter that is there, "
            "by its path (--python), or leave it out for that of Ray's workers"
        )
