"""What the config of a run needs, added to the requirements that its job brings. Pure."""

from collections.abc import Mapping, Sequence

from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import SOURCE_ONLY, canonical, named_package
from trainers.config.optional_packages import Need
from trainers.errors import ConfigError


def with_needed_packages(part: RuntimeEnvPart, needs: Sequence[Need], pins: Mapping[str, str]) -> RuntimeEnvPart:
    """Adds the packages that are not named yet; a job that brings none has those of the nodes.

    Where pip installs wheels only (see `installing`), what has no wheels is left out, unless the config needs it.

    Args:
        part: The key `job.runtime_env`, its requirements read (`freeze`).
        needs: What the config needs beyond the dependencies.
        pins: Canonical name → version; what is not in it is added without a version.

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
                f"{field}: {need.value} needs {name}, which has no wheels, and beside ${{NAME}} in an index URL pip "
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
