"""The requirements of a job: read at submission, and completed by what the run's config needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import SOURCE_ONLY, canonical, included_file, logical_lines, named_package
from trainers.config.optional_packages import OptionalPackage
from trainers.errors import ConfigError

MAX_BYTES = 4 * 1024**2
MAX_DEPTH = 20
LOCKS_OF_OTHER_FORMATS = (".toml", ".lock")


def freeze(part: RuntimeEnvPart, root: Path) -> RuntimeEnvPart:
    """Returns the part with the lines of a requirements file, or of a lock in its format, instead of the file's name.

    Raises:
        ConfigError: a file is missing or is not a requirements file, or a line in it cannot work.
    """
    if not isinstance(part.packages, str):
        return part
    assert part.tool is not None
    field, name = f"job.runtime_env.{part.tool}", part.packages
    if PurePosixPath(name).suffix in LOCKS_OF_OTHER_FORMATS:
        raise ConfigError(
            f"{field}: {name} is no list of requirements; make one, e.g. "
            "uv export --format requirements-txt > requirements.txt"
        )
    lines = list(dict.fromkeys(_read(root.resolve(), root / name, field, ())))
    if not lines:
        raise ConfigError(f"{field}: {name} names no package: name some in it, or set {field}: null")
    try:
        return RuntimeEnvPart.model_validate({**part.model_dump(), part.tool: lines})
    except ValidationError as error:
        reasons = "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in error.errors())
        raise ConfigError(f"{field}: {name}: {reasons}") from None


def _read(root: Path, path: Path, field: str, above: tuple[Path, ...]) -> list[str]:
    real = path.resolve()
    if not real.is_relative_to(root):
        raise ConfigError(
            f"{field}: {path} lies outside of the folder that travels with the job, {root}: name a file in it"
        )
    if real in above or len(above) > MAX_DEPTH:
        raise ConfigError(f"{field}: {path} includes itself: remove one of the lines -r")
    try:
        if real.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{field}: {path} has more than {MAX_BYTES} bytes: that is no list of requirements")
        text = real.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{field}: {path}: no such file; relative paths in a recipe count from its file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{field}: {path} cannot be read as text: {error}") from None
    lines: list[str] = []
    for line in logical_lines(text):
        included = included_file(line)
        lines += [line] if included is None else _read(root, path.parent / included, field, (*above, real))
    return lines


def with_needed_packages(
    part: RuntimeEnvPart, needs: Sequence[OptionalPackage], pins: Mapping[str, str]
) -> RuntimeEnvPart:
    """Adds packages that are not named yet; a job without packages of its own uses those of the nodes.

    If pip installs only wheels (see `build`), packages without wheels are left out, unless the config needs them.
    Packages without a pin, by canonical name, are added without a version.

    Raises:
        ConfigError: the requirements have hashes, or pip would have to build a package that is needed.
    """
    if part.tool is None:
        return part
    assert isinstance(part.packages, list)
    field, lines = f"job.runtime_env.{part.tool}", list(part.packages)
    wanted = {canonical(name): need for need in needs for name in need.requirements}
    wheels_only = part.tool == "pip" and bool(part.index_references)
    if wheels_only:
        lines = [line for line in lines if (named_package(line) or "") not in SOURCE_ONLY - wanted.keys()]
    present = {named_package(line) for line in lines}
    for name, need in wanted.items():
        if wheels_only and name in SOURCE_ONLY:
            raise ConfigError(
                f"{field}: {need.value} needs {name}, which has no wheels, and with ${{NAME}} in an index URL pip "
                "installs nothing else: use job.runtime_env.uv, which does not show them"
            )
        if name in present:
            continue
        if any("--hash" in line for line in lines):
            raise ConfigError(
                f"{field}: {need.value} needs {name}, which is not in these requirements, and they have hashes: "
                "add it there"
            )
        lines.append(f"{name}=={pins[name]}" if name in pins else name)
    return part.model_copy(update={part.tool: lines})
