"""Reads the requirements file that a RuntimeEnvPart names, when a run is submitted: later changes do not reach it."""

from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import included_file, logical_lines
from trainers.errors import ConfigError

MAX_BYTES = 4 * 1024**2
MAX_DEPTH = 20
LOCKS_OF_OTHER_FORMATS = (".toml", ".lock")


def freeze(part: RuntimeEnvPart, root: Path) -> RuntimeEnvPart:
    """The part with the lines of a requirements file, or of a lock in its format, in place of the file's name.

    Raises:
        ConfigError: a file is missing or is no requirements file, or a line in it cannot work.
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
        raise ConfigError(f"{field}: {path} lies outside of the repository {root}: name a file in it")
    if real in above or len(above) > MAX_DEPTH:
        raise ConfigError(f"{field}: {path} includes itself: remove one of the lines -r")
    try:
        if real.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{field}: {path} has more than {MAX_BYTES} bytes: that is no list of requirements")
        text = real.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{field}: {path}: no such file; paths are relative to the repository {root}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{field}: {path} cannot be read as text: {error}") from None
    lines: list[str] = []
    for line in logical_lines(text):
        included = included_file(line)
        lines += [line] if included is None else _read(root, path.parent / included, field, (*above, real))
    return lines
