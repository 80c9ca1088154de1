"""The config's script part: the program that every worker runs, unmodified. See `schema`."""

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from trainers.config.parts.part import VARIABLE, Part, Positive, rule

Words = Annotated[tuple[Annotated[str, StringConstraints(strip_whitespace=False)], ...], Field(min_length=1)]


def is_python(words: Sequence[str]) -> bool:
    """Returns True if a Python interpreter runs the command."""
    return words[0] == "-m" or words[0].endswith(".py")


class ScriptPart(Part):
    """A program that torchrun could start, and which of its outputs are kept."""

    command: Words = Field(
        description="The program and its arguments as a list: [train.py, --lr, 1e-4], [-m, package.train], or a "
        "program that is not in Python. A complete command line with its launcher works, too: `torchrun "
        "--nproc_per_node 4 train.py --lr 1e-4`; the launcher's options become part of the recipe."
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="Python interpreter on each node that runs the program, such as /opt/venv/bin/python; Rayscribe "
        "need not be installed in it. null: that of Ray's workers.",
    )
    working_dir: str | None = Field(
        None, min_length=1, description="Subfolder of the package in which the program runs. null: its top folder."
    )
    env: dict[Annotated[str, StringConstraints(pattern=VARIABLE)], str] = Field(
        {}, description="Environment variables of the program. Secrets belong in job.runtime_env.secrets."
    )
    prepare: Words | None = Field(
        None,
        description="A command that runs once per run, before the program; every node gets what it writes into the "
        "folder {data} (RAYSCRIBE_DATA). null: none.",
    )
    sync_dir: str | None = Field(
        None,
        min_length=1,
        description="Folder of the program's output, which is copied to the run folder. null: taken from the arguments "
        "(--output_dir, --output_folder, or output_folder in hparams.yaml).",
    )
    checkpoints: str = Field(
        "auto",
        min_length=1,
        description="Pattern of checkpoint folders in sync_dir, such as epoch_*. auto: those of transformers and "
        "SpeechBrain.",
    )
    num_to_keep: Positive | None = Field(
        3, description="Keep this many of the newest checkpoints, and the best one by each score. null: all."
    )
    path_prefix: dict[str, str] = Field(
        {}, description="Replaces the beginnings of paths in manifests that are fetched: {/home/a/: s3://b/}."
    )
    max_restarts: int = Field(
        0,
        ge=0,
        le=1000,
        description="Restarts of the workers, within an attempt, after the program itself has failed; for lost workers "
        "and nodes, see run.max_failures.",
    )
    stop_grace_s: Positive = Field(
        90, le=3600, description="Time for the program to save after SIGTERM, before it is killed. Seconds."
    )
    local_rank_option: str | None = Field(
        None,
        pattern=r"^--?[A-Za-z][A-Za-z0-9_-]*$",
        description="An option, such as deepspeed's --local_rank, that each process gets with its local rank, as "
        "OPTION=RANK before its arguments. null: the program reads LOCAL_RANK.",
    )
    hpu_mode: Literal["lazy", "eager"] | None = Field(
        None, description="How a Gaudi executes operators. null: the default of its image."
    )

    @field_validator("working_dir", "sync_dir")
    @classmethod
    def _inside(cls, folder: str | None) -> str | None:
        if folder is not None and ".." in PurePosixPath(folder).parts:
            raise ValueError("is outside of the package: name a folder in it, without ..")
        return folder

    @field_validator("working_dir")
    @classmethod
    def _below(cls, folder: str | None) -> str | None:
        if folder is not None and PurePosixPath(folder).is_absolute():
            raise ValueError("is an absolute path: give a path relative to the folder in which you submit")
        return folder

    @rule
    def _names_a_program(self) -> None:
        if self.command[0] == "-m" and len(self.command) == 1:
            raise ValueError("command: -m without a module: write [-m, package.module, …]")

    @property
    def is_python(self) -> bool:
        """True if a Python interpreter runs the program."""
        return is_python(self.command)

    def python_problem(self, machine: str) -> str | None:
        """Returns a message if this machine, which is to run the program, has no interpreter at the given path.

        Returns None if it has one, or if a path that is not absolute is looked up in the package or in a node's PATH.
        """
        path = self.python or ""
        if not self.is_python or not path.startswith("/") or os.access(path, os.X_OK):
            return None
        return (
            f"script.python: {path} is not a program on {machine}, which is to run it: give the path of an interpreter "
            "there (--python), or leave it out for that of Ray's workers"
        )
