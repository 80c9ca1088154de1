"""Converts YAML text to a TrainConfig, and back."""

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import yaml

from trainers.config.locations import expand_home, expand_variables
from trainers.config.overrides import copy_levels
from trainers.config.parts.part import TRAIN_SCOPE, ConfigScope
from trainers.config.schema import CONFIGS, AnyConfig, TrainConfig, trainer_of
from trainers.config.storage_location import in_home
from trainers.config.strict_loading import YamlError, load_json, load_yaml_file
from trainers.config.validation import examined, refuse
from trainers.config.wording import yaml_kind
from trainers.errors import ConfigError

Config = TypeVar("Config", bound=AnyConfig)

# The suffix of a run name that `with_run_name` makes from the time.
_OF_THE_TIME = re.compile(r"-\d{8}-\d{6}$")


class FileKind(NamedTuple):
    """A kind of YAML file, as messages describe it: its name, an example, and its first keys."""

    noun: str
    example: str
    keys: str


RECIPE = FileKind("recipe", "whisper_micro (`rayscribe recipes` lists those that are shipped)", "run, data, model, …")


# Tables that `rayscribe init` makes a recipe from.
_TABLES = (".csv", ".tsv", ".jsonl")

# The same path in the repository and in an installed distribution.
_ROOT = Path(__file__).parents[2]
_RECIPES = "jobs/specs"
_SHIPPED = (_RECIPES, "cluster_configs")


def shipped_recipes() -> dict[str, Path]:
    """Returns the recipes that this distribution ships, by name."""
    return {path.stem: path for path in sorted((_ROOT / _RECIPES).glob("*.yaml"))}


def shipped(path: Path) -> Path:
    """Returns the path, or the shipped file of that name if the path does not exist.

    `jobs/specs/whisper_micro.yaml` is found from any folder. `whisper_micro` is the same recipe, unless the current
    folder has a file `whisper_micro.yaml`.
    """
    if path.parent == Path() and not path.is_file():
        name = path.name.removesuffix(".yaml")
        own = Path(f"{name}.yaml")
        return own if own.is_file() else shipped_recipes().get(name, path)
    ours = any(path.is_relative_to(folder) for folder in _SHIPPED) and ".." not in path.parts
    return _ROOT / path if ours and not path.exists() and (_ROOT / path).is_file() else path


def read_yaml(path: Path, kind: FileKind = RECIPE) -> dict[str, Any]:
    """Reads a mapping from a file, or from the shipped file of that name.

    Raises:
        ConfigError: The file is missing, is not YAML, or is not a mapping.
    """
    speech = shlex.quote(str(path))
    if kind == RECIPE and path.suffix.lower() in _TABLES and path.is_file():
        raise ConfigError(f"{path}: is a table, not a recipe: `rayscribe init {speech}` writes a recipe for it")
    try:
        content = load_yaml_file(shipped(path))
    except FileNotFoundError:
        # A path or a name with an extension is rarely a misspelled shipped recipe.
        cutoff = 0.5 if path.name == str(path) == path.stem else 0.8
        near = difflib.get_close_matches(path.stem, shipped_recipes(), n=3, cutoff=cutoff) if kind == RECIPE else []
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise ConfigError(f"{path}: no such file; name a {kind.noun}, e.g. {kind.example}{meant}") from None
    except IsADirectoryError:
        recordings = f"; for recordings, `rayscribe init {speech}` writes one" if kind == RECIPE else ""
        example = path / f"{kind.noun}.yaml"
        raise ConfigError(f"{path}: a folder; name the {kind.noun} in it, e.g. {example}{recordings}") from None
    except YamlError as error:
        where = f":\n{error.excerpt}" if error.excerpt else ""
        raise ConfigError(f"{path}: cannot be read as YAML: {error}; correct it{where}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; make it readable") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: contains {yaml_kind(content)}, not the keys {kind.keys}")
    return content


def build_any_config(
    content: Mapping[str, Any],
    *,
    origin: str,
    environment: Mapping[str, str] | None = None,
    scope: ConfigScope = TRAIN_SCOPE,
    known: Sequence[str] = (),
    further: Callable[[AnyConfig], Iterable[object]] = lambda config: (),
) -> AnyConfig:
    """Validates the content of a recipe of any kind, with overrides applied; messages name `origin` as its source.

    Paths may contain variables of `environment`, by default the process's, as `${NAME}`; parts outside `scope` may be
    missing. Problems in `known` are reported with the others; if there are any problems, `further` looks for more in
    the parts of the recipe that could be read.

    Raises:
        ConfigError: There are problems; the message lists each with its field, value and fix.
    """
    variables = os.environ if environment is None else environment
    content, unread = read_ds_config(content)
    trainer = trainer_of(content)
    if not scope.trains and trainer == "huggingface":
        content = {"model": {}, "training": {}, **content}
    expanded, missing = expand_variables(content, variables, scope)
    config, problems = examined(CONFIGS[trainer], expand_home(expanded), scope)
    problems = [*known, *unread, *missing, *problems]
    if problems and not missing and config is not None:
        problems += map(str, further(config))
    refuse(problems, origin)
    assert config is not None
    return config


def build_config(
    content: Mapping[str, Any],
    *,
    origin: str,
    environment: Mapping[str, str] | None = None,
    scope: ConfigScope = TRAIN_SCOPE,
) -> TrainConfig:
    """Validates the content of a recipe as `build_any_config` does; also refuses a recipe that does not train."""
    config = build_any_config(content, origin=origin, environment=environment, scope=scope)
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"{origin}: trainer is {config.trainer}, but a training is needed here: give its recipe")
    return config


def read_ds_config(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns a copy in which the path in `strategy.ds_config` is replaced by the file's content, and any problems.

    So all nodes have the content, and later edits of the file have no effect.
    """
    result = copy_levels(content)
    part = result.get("strategy")
    if not isinstance(part, dict) or not isinstance(part.get("ds_config"), str):
        return result, []
    path = part.pop("ds_config")
    try:
        file = in_home(os.path.expandvars(path))
        part["ds_config"] = load_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, ConfigError) as error:
        return result, [f"strategy.ds_config: {path}: cannot be read as JSON: {error}; name a ds_config.json"]
    return result, []


def with_run_name(config: Config, recipe: Path | None, now: datetime) -> Config:
    """Returns the config with a run name; one that has none gets a name made from the recipe's and the time."""
    if config.run.name is not None:
        return config
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", recipe.stem).strip("-.") if recipe is not None else ""
    name = f"{stem[:80] or 'run'}-{now:%Y%m%d-%H%M%S}"
    return cast("Config", config.model_copy(update={"run": config.run.model_copy(update={"name": name})}))


def same_command(name: str) -> str:
    """Returns what a user runs to continue a run started by hand; a name made from the time must be given again."""
    return f"the same recipe with --set run.name={name}" if _OF_THE_TIME.search(name) else "the same command"


def to_yaml(config: AnyConfig) -> str:
    """Renders the complete config, defaults included, in the order of its fields."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
