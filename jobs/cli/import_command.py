"""rayscribe import-command: converts the command line of a public fine-tuning script to a recipe."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated

import typer

from cluster_configs.rendering.commented_yaml import to_commented_yaml
from jobs.cli.output import ForceOption, echo, write_file
from jobs.submission.job_spec import JobPart
from runtime_env.secret_arguments import find_literal_secrets
from trainers.config.flags.script_recipe import KINDS, ScriptRecipe, recipe_of_script
from trainers.config.locations import as_written_to
from trainers.config.overrides import Override
from trainers.config.validation import refuse, validated
from trainers.errors import ConfigError
from trainers.scripts.launchers.launcher import LaunchLine
from trainers.scripts.launchers.line_parser import parse_line
from trainers.scripts.launchers.line_words import split_line

NOT_ALL = 1
COMMENTS = {
    "run/storage_path": "A folder or a URL that all nodes can access.",
    "data/dataset/test_split": "The script has no final score: its eval split chooses the best model.",
    "scaling/use_gpu": "The script uses a GPU if there is one; false trains on CPUs.",
}
_HPU = (
    "training on HPUs needs the vendor's image and Optimum's Trainer: the recipe trains on GPUs; `rayscribe launch` "
    "runs the script itself on HPUs"
)
# Variables of accelerate launch, with the values that need no field of a recipe or repeat other variables.
_NOTHING: Mapping[str, tuple[str, ...]] = {
    "ACCELERATE_MIXED_PRECISION": ("no",),
    "ACCELERATE_DYNAMO_BACKEND": ("NO",),
    "ACCELERATE_DYNAMO_MODE": ("default",),
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": ("False",),
    "ACCELERATE_DYNAMO_USE_DYNAMIC": ("False",),
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": ("False", "True"),
    "ACCELERATE_USE_CPU": ("False", "True"),
}
# Prefixes of accelerate's variables, which a recipe has fields for instead; and variables that identify the launcher.
_FIELDLESS = ("ACCELERATE_", "FSDP_")
_OF_THE_LAUNCHER = ("TORCHELASTIC_RUN_ID", "ROLE_NAME")
_GAUDI = ("PT_HPU_", "HABANA_", "GC_KERNEL_PATH", "HCL_", "HLS_")
_FIELDS: Mapping[tuple[str, str], str] = {
    ("ACCELERATE_MIXED_PRECISION", "fp16"): "training.fp16",
    ("ACCELERATE_MIXED_PRECISION", "bf16"): "training.bf16",
    ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"): "training.torch_compile",
}


def import_command(
    line: Annotated[
        list[str],
        typer.Argument(metavar="LINE", help="The line, in quotes or as words after --; - reads standard input."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the recipe there. Default: standard output.")
    ] = None,
    force: ForceOption = False,
    kind: Annotated[
        str | None,
        typer.Option("--as", metavar="seq2seq|ctc", help="The script is a copy of transformers' script for this."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if something was not carried over.")
    ] = False,
) -> None:
    """Convert a line of transformers' scripts to a recipe.

    The recipe does what the line does. Supports run_speech_recognition_seq2seq.py, run_speech_recognition_ctc.py and
    Optimum's versions of them for Gaudi, after torchrun, accelerate launch, deepspeed, mpirun, srun, gaudi_spawn.py or
    python. Standard error and the recipe list what is not carried over, with the reason.

    Example: rayscribe import-command 'torchrun run_speech_recognition_seq2seq.py …' --out my.yaml

    Example: rayscribe import-command --as seq2seq 'python my_finetune.py …' --out my.yaml

    Example: rayscribe import-command --strict -- python run_speech_recognition_ctc.py …

    Example: rayscribe import-command - --out my.yaml < train.sh
    """
    if line == ["-"]:
        line = [sys.stdin.read()]
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--as {kind}: write one of {', '.join(KINDS)}")
    text, left_out, notes = recipe_text(split_line(line[0]) if len(line) == 1 else line, out, kind)
    for note in notes:
        echo(f"note: {note}", err=True)
    for item in left_out:
        echo(f"not carried over: {item}", err=True)
    write_file(out, text, "--out", force=force)
    if strict and left_out:
        raise typer.Exit(NOT_ALL)


def recipe_text(
    words: Sequence[str], out: Path | None = None, kind: str | None = None
) -> tuple[str, list[str], list[str]]:
    """Returns the recipe of a line as text for its file, what is not carried over, and notes.

    `kind` is one of KINDS, needed for a script with another name.

    Raises:
        ConfigError: the line cannot be parsed, or no recipe can do what its script does.
    """
    line = parse_line(words)
    script = PurePath(line.program.name).name
    overrides, left_out = _of_launcher(line)
    # Variables of the launcher that workers of a recipe may have too, such as OMP_NUM_THREADS.
    not_plain = (*_FIELDLESS, *_OF_THE_LAUNCHER)
    plain = {name: value for name, value in line.variables.items() if not name.startswith(not_plain)}
    variables, more = _of_environment({**line.assignments, **plain})
    if variables:
        overrides.append((("job", "runtime_env", "env_vars"), variables))
    recipe = recipe_of_script(KINDS[kind] if kind else script, line.program.arguments, overrides)
    left_out = [*left_out, *more, *recipe.left_out]
    refuse([*find_literal_secrets(recipe.content)], script)
    content = recipe.content if out is None else as_written_to(out, recipe.content)
    return to_commented_yaml(content, COMMENTS, _head(script, recipe, left_out)), left_out, [*line.notes, *recipe.notes]


def _head(script: str, recipe: ScriptRecipe, left_out: Sequence[str]) -> str:
    lines = [f"What a line with {script} does. rayscribe import-command has written it."]
    if recipe.defaults:
        lines += ["", f"Not in the line, but defaults of the script: {', '.join(recipe.defaults)}."]
    if recipe.notes:
        lines += ["", *recipe.notes]
    if left_out:
        lines += ["", "Not carried over:", *(f"  {item}" for item in left_out)]
    return "\n".join([*lines, ""])


def _of_launcher(line: LaunchLine) -> tuple[list[Override], list[str]]:
    overrides: list[Override] = [(("scaling", "use_gpu"), line.device != "cpu")]
    left_out = [f"{line.launcher}: {_HPU}"] if line.device == "hpu" else []
    if line.workers is None:
        left_out.append(f"{line.launcher}: it counts the devices of its own machine: set scaling.num_workers")
    elif line.workers.min == line.workers.max:
        overrides.append((("scaling", "num_workers"), line.workers.max))
    else:
        overrides.append((("scaling", "num_workers"), {"min": line.workers.min, "max": line.workers.max}))
    if line.max_retries not in (None, JobPart().max_retries):
        overrides.append((("job", "max_retries"), line.max_retries))
    for name, value in line.variables.items():
        if field := _FIELDS.get((name, value)):
            overrides.append((tuple(field.split(".")), True))
        elif name.startswith(_FIELDLESS) and value not in _NOTHING.get(name, ()):
            left_out.append(f"{name}={value}, which {line.launcher} sets: no field for it; see strategy and training")
    return overrides, left_out


def _of_environment(assignments: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    kept: dict[str, str] = {}
    left_out = []
    for name, value in assignments.items():
        _, problems = validated(JobPart, {"runtime_env": {"env_vars": {name: value}}})
        if name.startswith(_GAUDI):
            left_out.append(f"{name}={value}: only the software of HPUs reads it")
        elif problems:
            left_out += [f"{name}: job.{problem}" for problem in problems]
        else:
            kept[name] = value
    return kept, left_out
