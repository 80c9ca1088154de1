"""Builds the package and the run request for a recipe on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from jobs.submission.job_spec import AnyRunConfig, JobSpec, RunConfig
from jobs.submission.run_request import RunRequest
from runtime_env.build import freeze, is_install_script, script_files, with_needed_packages
from runtime_env.config import RuntimeEnvPart
from runtime_env.package import Package, pack
from runtime_env.requirements import read_pins
from runtime_env.tree import ENTRY, Tree, list_tree
from trainers.config.optional_packages import packages_for
from trainers.config.parts.data_location import SHIPPED
from trainers.config.schema import ScriptConfig
from trainers.config.submitted import OVERRIDES_RECORD, write_record

if TYPE_CHECKING:
    # Reads manifests with pyarrow, which takes long to import.
    from jobs.submission.shipped_data import Shipment

CONSTRAINTS = "constraints.txt"


@dataclass(frozen=True)
class Bundle:
    """Sources of a submission's package.

    Attributes:
        root: The working directory.
        tree: Its files that are packaged.
        runtime_env: The job's runtime_env, with requirements files read in.
        extra: Files to add: the record of overrides, the install script, shipped data.
        shipment: The shipped data, if `data.ship` is true.
        needed: The file that starts the job. None if it is not in the package.
    """

    root: Path
    tree: Tree
    runtime_env: RuntimeEnvPart
    extra: Mapping[str, bytes | Path]
    shipment: "Shipment | None" = None
    needed: str | None = None


def collect_bundle(spec: JobSpec) -> Bundle:
    """Collects the files to package with a recipe.

    Raises:
        ConfigError: requirements or patterns are not valid, a file cannot be read, or data cannot be shipped (see
            `ship`).
    """
    requested, config, root = spec.job.runtime_env, spec.config, spec.root
    constraints = root / CONSTRAINTS
    pins = read_pins(constraints.read_text(encoding="utf-8")) if constraints.is_file() else {}
    optional = packages_for(config) if isinstance(config, RunConfig) else ()
    part = with_needed_packages(freeze(requested, root), optional, pins)
    scripts = script_files(part)
    # The run's install script replaces the repository's. Also leaves out the record of overrides of an earlier package
    # that was unpacked here.
    replaced = [f"/{name}" for name in scripts if is_install_script(root / name)] + [f"/{OVERRIDES_RECORD}"]
    extra: dict[str, bytes | Path] = {**scripts, OVERRIDES_RECORD: write_record(list(spec.overrides))}
    needed = program_of(config) if spec.is_script else ENTRY if spec.has_entry else None
    if not (isinstance(config, RunConfig) and config.data.ship):
        return Bundle(root, list_tree(root, [*requested.excludes, *replaced]), part, extra, needed=needed)
    from jobs.submission.shipped_data import ship  # noqa: PLC0415

    tree = list_tree(root, [*requested.excludes, *replaced, f"/{SHIPPED}/"])
    shipment = ship(config, tree)
    return Bundle(root, tree, part, {**extra, **shipment.files}, shipment, needed=needed)


def program_of(config: AnyRunConfig) -> str | None:
    """Returns the path in the package of the Python script that a program's run starts; None for other programs."""
    if not isinstance(config, ScriptConfig) or not config.script.command[0].endswith(".py"):
        return None
    path = PurePosixPath(config.script.working_dir or ".", config.script.command[0])
    return None if path.is_absolute() or ".." in path.parts else str(path)


def pack_bundle(bundle: Bundle, folder: Path) -> Package:
    """Creates the package; raises like `pack`."""
    return pack(bundle.tree, folder, bundle.extra, needed=bundle.needed)


def run_request_of(spec: JobSpec, bundle: Bundle, package: str) -> RunRequest:
    """Builds the request: the package, and the config with requirements read in and paths of shipped data."""
    job = spec.job.model_copy(update={"runtime_env": bundle.runtime_env})
    config = spec.config if bundle.shipment is None else bundle.shipment.config
    config = config.model_copy(update={"job": job})
    return RunRequest(config=config.model_dump(mode="json"), package=package)
