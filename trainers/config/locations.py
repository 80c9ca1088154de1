"""Resolves the paths of a config: `${NAME}`, `~`, relative paths, run folders, prepared sets. Opens no storage."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainers.config.family_table import decode_parts, family_parts
from trainers.config.overrides import Override, apply_overrides, copy_levels, value_at
from trainers.config.parts.data_location import path_in, with_path
from trainers.config.parts.part import (
    ALSO_FIELD,
    DATA_FIELDS,
    DECODE_FIELDS,
    PATH_FIELDS,
    SOURCE_FIELDS,
    STORAGE_FIELDS,
    TRAIN_SCOPE,
    ConfigScope,
)
from trainers.config.parts.run_part import PREPARED
from trainers.config.schema import AnyConfig, TrainConfig
from trainers.config.storage_location import in_home, is_absolute, unsupported_url
from trainers.errors import ConfigError

Config = TypeVar("Config", bound=AnyConfig)

RAY_DEFAULT_STORAGE = "~/ray_results"
# The members of a mix have path fields of the same names as the data part.
_MIX = "mix"
# Other paths of a recipe, and whether each may be a name on the Hub; if not, its file is read with the recipe.
_OTHER_PATHS: dict[tuple[str, ...], bool] = {
    ("data", "dataset", "name"): True,
    ("strategy", "ds_config"): False,
    **{("job", "runtime_env", field): False for field in ("working_dir", "pip", "uv")},
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def default_storage_path() -> str:
    """Returns the folder where Ray keeps results on this machine when no storage path is given."""
    return str(in_home(RAY_DEFAULT_STORAGE))


def storage_path_of(config: AnyConfig) -> str:
    """Returns the absolute folder or URL that contains the run folders."""
    return (config.run.storage_path or default_storage_path()).rstrip("/")


def cache_url_of(config: TrainConfig) -> str:
    """Returns the folder or URL of the prepared sets."""
    return config.data.cache_dir or f"{storage_path_of(config)}/{PREPARED}"


def variables_in(text: str) -> list[str]:
    """Returns the names of the variables that a path refers to as `${NAME}`."""
    return _VARIABLE.findall(text)


def with_variables(text: str, environment: Mapping[str, str]) -> str:
    """Returns a path in which variables that are set are replaced by their values."""
    return _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), text)


def _path_fields() -> Iterator[tuple[str, str]]:
    yield from (each for each in PATH_FIELDS if each not in DECODE_FIELDS)
    yield from (("model", field) for part in family_parts().values() for field in part.files)
    yield from (("decode", field) for part in decode_parts().values() for field in (*part.files, *part.models))


def _may_be_hub_id(part: str, field: str) -> bool:
    models = (name for each in decode_parts().values() for name in each.models)
    return (part, field) in SOURCE_FIELDS or (part == "decode" and field in models)


def path_values(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields part, field and value of each path in a recipe's content; skips values that are not strings.

    The fields of a mix are `mix.<number of the member>.<field>`, those of evaluate.also `also.<name>`.
    """
    for part, field in _path_fields():
        value = value_at(content, (part, field))
        if isinstance(value, str):
            yield part, field, value
    members = value_at(content, ("data", _MIX))
    for number, member in enumerate(members if isinstance(members, list | tuple) else ()):
        for part, field in DATA_FIELDS:
            if isinstance(member, Mapping) and isinstance(member.get(field), str):
                yield part, f"{_MIX}.{number}.{field}", member[field]
    part, field = ALSO_FIELD
    also = value_at(content, ALSO_FIELD)
    for name, value in also.items() if isinstance(also, Mapping) else ():
        if isinstance(value, str):
            yield part, f"{field}.{name}", value


def field_of(field: str) -> str:
    """Returns the name of a field that is named as in `path_values`, without the member or name that has it."""
    first, _, rest = field.partition(".")
    return rest.rpartition(".")[2] if first == _MIX else first


def set_path(content: dict[str, Any], part: str, field: str, value: str) -> None:
    """Sets a path, named as in `path_values`, in a copy of a recipe's content."""
    first, _, name = field.partition(".")
    if not name:
        content[part][field] = value
        return
    if first != _MIX:
        content[part][first] = {**content[part][first], name: value}
        return
    number, name = name.split(".")
    members = [dict(member) if isinstance(member, Mapping) else member for member in content[part][_MIX]]
    members[int(number)][name] = value
    content[part][_MIX] = members


def anchored(
    content: Mapping[str, Any], base: Path, root: Path | None = None, *, storage: bool = True
) -> dict[str, Any]:
    """Returns a copy of a recipe's content; its paths relative to `base` become absolute, or relative to `root`.

    Paths into `root`, the folder of a package, become relative to it, except storage paths, which become absolute, or
    stay unchanged if `storage` is False. Paths that begin with `~` or a variable stay unchanged, as does a name on the
    Hub, unless `base` has a folder of that name.
    """
    result = copy_levels(content)
    for part, field, value in path_values(content):
        name = field_of(field)
        is_storage = (part, name) in STORAGE_FIELDS
        move = partial(_moved, base=base, root=None if is_storage else root, is_name=_may_be_hub_id(part, name))
        if storage or not is_storage:
            set_path(result, part, field, with_path(value, move))
    for path, is_name in _OTHER_PATHS.items():
        value = value_at(result, path)
        if isinstance(value, str):
            moved = _moved(value, base=base, root=root if is_name else None, is_name=is_name)
            result = apply_overrides(result, [(path, moved)])
    return result


def as_written_to(file: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a recipe's content for `file`, with paths relative to the current folder adapted to the file's folder."""
    folder, here = file.absolute().parent.resolve(), Path.cwd()
    return content if folder == here else anchored(content, here, folder)


def _moved(path: str, *, base: Path, root: Path | None, is_name: bool) -> str:
    is_kept = is_absolute(path) or path.startswith(("~", "$")) or unsupported_url(path) is not None
    if is_kept or (is_name and not (base / path).exists()):
        return path
    target = (base / path).resolve()
    return str(target.relative_to(root) if root is not None and target.is_relative_to(root) else target)


def anchored_override(override: Override, base: Path, root: Path | None = None, *, storage: bool = True) -> Override:
    """Applies `anchored` to an override from the command line."""
    path, _ = override
    return path, value_at(anchored(apply_overrides({}, [override]), base, root, storage=storage), path)


def expand_variables(
    content: Mapping[str, Any], environment: Mapping[str, str], scope: ConfigScope = TRAIN_SCOPE
) -> tuple[dict[str, Any], list[str]]:
    """Returns a copy with `${NAME}` in paths replaced, and a line for each unset variable that `scope` needs."""
    result, problems = copy_levels(content), []
    for part, field, value in path_values(content):
        problems += [
            f"{part}.{field}: {value} names the variable {name}, which is not set: "
            f"export {name}=…, or --set {part}.{field}=…"
            for name in variables_in(value)
            if name not in environment and scope.requires_path(part, field_of(field))
        ]
        set_path(result, part, field, with_variables(value, environment))
    return result, problems


def expand_home(content: Mapping[str, Any], fields: Collection[tuple[str, str]] | None = None) -> dict[str, Any]:
    """Returns a copy in which a leading `~` of paths is replaced by the home folder; `~name` of an unknown user stays.

    `fields` has part and field of the paths to expand; if None, all paths are expanded.
    """
    result = copy_levels(content)
    for part, field, value in path_values(content):
        if fields is None or (part, field_of(field)) in fields:
            # Not pathlib's expanduser, which raises for an unknown user.
            set_path(result, part, field, with_path(value, os.path.expanduser))
    return result


def make_paths_absolute(config: Config, base: Path) -> Config:
    """Returns the config with every relative path joined to `base`, as `anchored` does."""
    content = config.model_dump(include={part for part, _ in _path_fields()})
    for part, field, value in path_values(anchored(content, base)):
        config = _with_value(config, [part, *field.split(".")], value)
    return config


def _with_value(config: Any, path: Sequence[str], value: str) -> Any:
    """Returns a copy of a part of a config, or of a tuple or table in it, with a new value at a path of names."""
    if not path:
        return value
    name, *rest = path
    if isinstance(config, Mapping):
        return {**config, name: value}
    if isinstance(config, tuple):
        return tuple(_with_value(each, rest, value) if str(at) == name else each for at, each in enumerate(config))
    return config.model_copy(update={name: _with_value(getattr(config, name), rest, value)})


def relative_storage(config: AnyConfig) -> list[str]:
    """Returns a line for each relative storage path, which in a job would be in the copy that Ray deletes."""
    values = [(part, field, getattr(getattr(config, part, None), field, None)) for part, field in STORAGE_FIELDS]
    return [
        f"{part}.{field} is {value}, a relative path inside a Ray job: it would be in the job's copy of the "
        f"working directory, which Ray deletes. Give an absolute folder or a URL (--set {part}.{field}=/…)"
        for part, field, value in values
        if value is not None and not is_absolute(value)
    ]


def refuse_relative_storage(config: AnyConfig) -> None:
    """Raises ConfigError with the first problem that `relative_storage` finds."""
    for problem in relative_storage(config):
        raise ConfigError(problem)


def unresolved_paths(config: AnyConfig, variables: Collection[str]) -> list[str]:
    """Returns a line for each path of a submitted config that would not be the same for the service and every node.

    `variables` are those that the job sets, so that each node resolves them.
    """
    problems = []
    if config.run.storage_path is None:
        problems.append(
            f"run.storage_path: null means {RAY_DEFAULT_STORAGE}, which is another folder on each machine unless the "
            "cluster is on this one: give an absolute folder that all nodes share, or a URL "
            "(--set run.storage_path=/…)"
        )
    for part, field, value in path_values(config.model_dump(include={part for part, _ in PATH_FIELDS})):
        names = variables_in(value)
        if path_in(value).startswith("~"):
            problems.append(
                f"{part}.{field}: {value} is another folder on each machine unless the cluster is on this one: give an "
                f"absolute folder, or a URL (--set {part}.{field}=/…)"
            )
        elif names and (part, field) == ("run", "storage_path"):
            problems.append(
                f"{part}.{field}: {value} is known on the nodes only, but the service watches the run folder: write "
                f"the value of {', '.join(names)} (--set {part}.{field}=/…)"
            )
        else:
            problems += [
                f"{part}.{field}: {value} names the variable {name}, which the job does not bring: give it under "
                "job.runtime_env.env_vars or job.runtime_env.secrets"
                for name in names
                if name not in variables
            ]
    started = {problem.partition(":")[0] for problem in problems}
    return problems + [line for line in relative_storage(config) if line.partition(" ")[0] not in started]
