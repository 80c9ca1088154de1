"""From a recipe on this machine to what is submitted: package, run request, and the request to Ray."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobs.model import Run
from jobs.submission.job_spec import JobPart, JobSpec
from jobs.submission.ray_request import SubmitRequest, build_request
from jobs.submission.run_request import RunRequest, run_of
from runtime_env.config import RuntimeEnvPart
from runtime_env.freeze import freeze, with_needed_packages
from runtime_env.install_script import is_install_script, script_files
from runtime_env.package import Package, pack
from runtime_env.requirements import read_pins
from runtime_env.tree import Tree, find_root, list_tree
from trainers.config.optional_packages import needs_of
from trainers.config.storage_location import in_home
from trainers.config.submitted import OVERRIDES_RECORD, write_record

CONSTRAINTS = "constraints.txt"


@dataclass(frozen=True)
class Bundle:
    """What a submission is packaged from; `extra` files are added: the record of overrides, the install script."""

    root: Path
    tree: Tree
    runtime_env: RuntimeEnvPart
    extra: dict[str, bytes]


def collect_bundle(spec: JobSpec, start: Path) -> Bundle:
    """Collects what is packaged with a recipe.

    Raises:
        ConfigError: there is no task.py, or the working directory is too large; with the largest files.
    """
    requested = spec.job.runtime_env
    root = find_root(in_home(requested.working_dir) if requested.working_dir else start)
    part = with_needed_packages(freeze(requested, root), needs_of(spec.config), _pins(root))
    scripts = script_files(part)
    # The run's install script replaces the repository's; the record of an earlier package that was unpacked here is
    # left out, too.
    replaced = [f"/{name}" for name in scripts if is_install_script(root / name)] + [f"/{OVERRIDES_RECORD}"]
    tree = list_tree(root, [*requested.excludes, *replaced])
    return Bundle(root, tree, part, {**scripts, OVERRIDES_RECORD: write_record(list(spec.overrides))})


def _pins(root: Path) -> dict[str, str]:
    """Version of each package that the repository names; none where it names none."""
    path = root / CONSTRAINTS
    return read_pins(path.read_text(encoding="utf-8")) if path.is_file() else {}


def pack_bundle(bundle: Bundle, folder: Path) -> Package:
    """Creates the package.

    Raises:
        ConfigError: it is larger than Ray's limit.
    """
    return pack(bundle.tree, folder, bundle.extra)


def run_request_of(spec: JobSpec, bundle: Bundle, package: str) -> RunRequest:
    """The request to the service: the config, with its requirements files read, and the package."""
    job = spec.job.model_copy(update={"runtime_env": bundle.runtime_env})
    config = spec.config.model_copy(update={"job": job})
    return RunRequest(config=config.model_dump(mode="json"), package=package)


def preview(
    run_request: RunRequest, *, address_of: Callable[[JobPart], str], user: str, resume: Callable[[Run], str]
) -> SubmitRequest:
    """The request to Ray of the first attempt."""
    run = run_of(run_request, uid="<made at submission>", user=user, address_of=address_of, now_s=0.0)
    return build_request(run, 1, package=f"<packages>/{run.package}.zip", resume=resume(run))
