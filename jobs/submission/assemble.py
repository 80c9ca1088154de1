"""From a recipe on this machine to what is submitted: package, run request, and the request to Ray."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobs.model import Run
from jobs.submission.job_spec import JobPart, JobSpec
from jobs.submission.ray_request import SubmitRequest, build_request
from jobs.submission.run_request import RunRequest, run_of
from runtime_env.config import RuntimeEnvPart
from runtime_env.freeze import freeze
from runtime_env.install_script import is_install_script, script_files
from runtime_env.package import Package, pack
from runtime_env.tree import Tree, find_root, list_tree

# Where a recipe that lies outside of the repository goes in the package.
OUTSIDE = ".rayscribe"


@dataclass(frozen=True)
class Bundle:
    """What a submission brings along.

    Attributes:
        root: The repository's root.
        tree: Its files that go along.
        spec_path: The recipe, relative to the root.
        runtime_env: What the job brings along, its requirements read.
        extra: Files that are added: a recipe from outside of the repository, the script that installs.
    """

    root: Path
    tree: Tree
    spec_path: str
    runtime_env: RuntimeEnvPart
    extra: dict[str, bytes]


def gather(spec: JobSpec, start: Path) -> Bundle:
    """Finds what goes along with a recipe.

    Args:
        spec: The recipe.
        start: Folder from which the repository is looked for, upwards.

    Raises:
        ConfigError: there is no task.py, or the working directory is too large; with the largest files.
    """
    asked = spec.job.runtime_env
    root = find_root(Path(asked.working_dir).expanduser() if asked.working_dir else start)
    part = freeze(asked, root)
    recipe, extra = spec.path.resolve(), script_files(part)
    # The repository's own script, which installs its requirements.txt, makes way for the run's.
    replaced = [f"/{name}" for name in extra if is_install_script(root / name)]
    tree = list_tree(root, [*asked.excludes, *replaced])
    inside = recipe.is_relative_to(root) and recipe.relative_to(root).as_posix() in {file.path for file in tree.files}
    if inside:
        return Bundle(root, tree, recipe.relative_to(root).as_posix(), part, extra)
    name = f"{OUTSIDE}/{recipe.name}"
    return Bundle(root, tree, name, part, {**extra, name: recipe.read_bytes()})


def pack_bundle(bundle: Bundle, folder: Path) -> Package:
    """Makes the package.

    Raises:
        ConfigError: it is larger than Ray takes.
    """
    return pack(bundle.tree, folder, bundle.extra)


def run_request_of(spec: JobSpec, bundle: Bundle, package: str) -> RunRequest:
    """What the service is asked for."""
    job = spec.job.model_copy(update={"runtime_env": bundle.runtime_env})
    return RunRequest(
        config={**spec.config.model_dump(mode="json"), "job": job.model_dump(mode="json")},
        spec_path=bundle.spec_path,
        overrides=list(spec.overrides),
        package=package,
    )


def preview(
    run_request: RunRequest, *, address_of: Callable[[JobPart], str], user: str, resume: Callable[[Run], str]
) -> SubmitRequest:
    """The request that the first attempt would make of Ray.

    Args:
        run_request: What would be asked for.
        address_of: Chooses the cluster.
        user: Who would ask.
        resume: Says what a run starts from.
    """
    run = run_of(run_request, uid="<made at submission>", user=user, address_of=address_of, now_s=0.0)
    return build_request(run, 1, package=f"<packages>/{run.package}.zip", resume=resume(run))
