"""Commands on pages have options that there are, and all arguments that they need; recipes take what they set."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from jobs.cli.app import app
from tests.docs.page_commands import COMMENT, IDS, INLINE, PAGES, commands_of, scripts_of
from tests.test_architecture import ROOT
from trainers.config.loader import build_any_config, read_yaml
from trainers.config.overrides import apply_overrides, parse_override
from trainers.main import parse

# What is not ours: nobody checks their arguments here.
OF_OTHERS = {
    *("aws", "gcloud", "kubectl", "docker", "sbatch", "qsub", "qdel", "scancel", "scontrol", "ssh", "curl", "git"),
    *("export", "source", "umask", "cd", "ls", "cp", "head", "cat", "nohup", "brew", "apt-get", "helm", "promtool"),
    *("prometheus", "grafana-server", "sudo", "torchrun", "mkdir", "echo", "tensorboard", "wandb", "mlflow", "trackio"),
    # A Python of another environment.
    "$PY",
}
SPECS = ROOT / "jobs" / "specs"
OF_RECIPES = ("train", "prepare", "evaluate", "preflight", "submit")
# A recipe that a page's reader has made stands for one like this.
OWN_RECIPE = "common_voice"
ENVIRONMENT = dict.fromkeys(("COMMON_VOICE", "SPEECH", "FSDD", "S3_BUCKET", "BUCKET"), "/speech")


def rayscribe(words: list[str]) -> None:
    """Parses a line of `rayscribe` as the command does, and applies its overrides to its recipe."""
    command: Any = typer.main.get_command(app)
    context: Any = None
    name: str | None = words[0]
    given = words[1:]
    while isinstance(command, TyperGroup):
        context = command.make_context(name, given, parent=context)
        name, command, given = command.resolve_command(context, [*context._protected_args, *context.args])
    with command.make_context(name, given, parent=context) as context:
        if name in OF_RECIPES and (recipe := context.params["spec"]) is not None:
            check_recipe(recipe, context.params["overrides"])


def check_recipe(recipe: Path, overrides: list[str]) -> None:
    """A recipe that is shipped, by its path or its name, or of the reader's own, takes what is set."""
    is_shipped = recipe.suffix == "" or recipe.parts[0] == "jobs"
    content = read_yaml(SPECS / f"{recipe.stem if is_shipped else OWN_RECIPE}.yaml")
    content = apply_overrides(content, [parse_override(each) for each in overrides])
    build_any_config(content, origin=str(recipe), environment=ENVIRONMENT)


def python(words: list[str]) -> None:
    match words[1:]:
        case ["task.py", *arguments]:
            given = parse(arguments)
            if given.config is not None:
                check_recipe(given.config, list(given.sets))
        case ["-m", "venv", _] | ["-m", "pip", *_] | ["-c", *_]:
            pass
        case ["-m", module, *_]:
            assert list(ROOT.glob(f"{module.replace('.', '/')}*")), f"{module} is there"
        case [script, *_]:
            assert script.endswith(".py")
        case _:
            pytest.fail(f"{words}: what python runs is named")


def pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for named in re.findall(r"rayscribe\[([^\]]+)\]", " ".join(words)):
        assert set(named.split(",")) <= set(extras)


def make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {word for word in words[1:] if "=" not in word and not word.startswith("-")} <= targets


def ray(words: list[str]) -> None:
    if words[1:3] == ["job", "submit"]:
        assert "--" in words, "what the job runs is behind --"
        check(words[words.index("--") + 1 :])


def bash(words: list[str]) -> None:
    assert (ROOT / words[1]).is_file()


CHECKS: Mapping[str, Callable[[list[str]], None]] = {
    "rayscribe": rayscribe,
    "python": python,
    "python3": python,
    "pip": pip,
    "make": make,
    "ray": ray,
    "bash": bash,
}


def check(words: list[str]) -> None:
    program = words[0].rpartition("/")[2]
    if program in CHECKS:
        CHECKS[program](words)
    else:
        assert program in OF_OTHERS, f"{program}: a program that is known"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_each_command_of_a_block_is_one_that_there_is(page: Path) -> None:
    wrong = {}
    for script in scripts_of(page):
        for words in commands_of(script):
            try:
                check(words)
            except (Exception, SystemExit) as error:
                wrong[" ".join(words)] = f"{type(error).__name__}: {error}"
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_command_leaves_out_an_argument(page: Path) -> None:
    """Three dots are for what is printed."""
    inline = [found["command"] for found in INLINE.finditer(page.read_text(encoding="utf-8"))]
    typed = [COMMENT.sub("", script) for script in scripts_of(page)]
    assert [text for text in [*typed, *inline] if "…" in text or "..." in text] == []


def test_pages_have_commands() -> None:
    assert sum(1 for page in PAGES for script in scripts_of(page) for _ in commands_of(script)) > 100


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (["rayscribe", "train"], "Missing"),
        (["rayscribe", "train", "laptop", "--sett", "a=1"], "No such option"),
        (["rayscribe", "trian", "laptop"], "No such command"),
        (["rayscribe", "train", "laptop", "--set", "training.max_step=1"], "unknown key"),
        (["rayscribe", "train", "desktop"], "no such file"),
        (["raysribe", "list"], "known"),
        (["ray", "job", "submit", "python", "task.py"], "behind"),
    ],
)
def test_a_wrong_command_is_found(line: list[str], error: str) -> None:
    with pytest.raises(Exception, match=error):
        check(line)
