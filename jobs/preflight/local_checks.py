"""Checks of the package, and of where the run is kept; they make no requests to the cluster."""

import os
from collections.abc import Iterator
from pathlib import Path

from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.preflight.context import Context
from jobs.scheduler.feasibility import Capacity
from jobs.submission.assemble import program_of
from jobs.submission.job_spec import ScriptRunConfig, variables_of
from runtime_env.package import no_such_file
from runtime_env.tree import A_LINK_OUT, Tree, package_size
from trainers.config.config_scope import SHIPPED_FIELDS
from trainers.config.locations import default_storage_path, storage_path_of
from trainers.config.parts.data_location import path_in
from trainers.config.storage_location import is_absolute, is_url
from trainers.errors import StorageError
from trainers.findings import Check, Finding, ok, problem, skipped, warning
from trainers.storage import try_out

STORAGE_TIMEOUT_S = 20.0
# Folders that are a machine's own wherever they are.
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root")


def check_working_dir(context: Context) -> Iterator[Finding]:
    """Computes the size of the package."""
    size = package_size(context.bundle.tree, context.bundle.extra)
    yield ok(size.message) if size.fits else problem(size.message)


def check_packaged_data(context: Context) -> Iterator[Finding]:
    """Checks that files of the repository that the recipe names are packaged."""
    assert context.spec is not None
    config, root = context.spec.config, context.spec.root
    if isinstance(config, ScriptRunConfig):
        yield from _check_program(context, config)
        return
    # What is shipped was read for it.
    fields = [*(() if config.data.ship else SHIPPED_FIELDS), *(("decode", field) for field in config.decode.files)]
    paths = {f"{part}.{name}": getattr(getattr(config, part), name) for part, name in fields}
    inside = {field: path_in(path) for field, path in paths.items() if path is not None and _is_relative(path_in(path))}
    if not inside:
        yield ok("the recipe names no data in the repository")
        return
    packed = {file.path for file in context.bundle.tree.files}
    for field, path in inside.items():
        name = Path(path).as_posix()
        if not (root / path).exists():
            yield problem(f"{field}: {path}: no such file in {root}; fix it (--set {field}=…)")
        elif name not in packed and not any(file.startswith(f"{name}/") for file in packed):
            yield problem(
                f"{field}: {path} is not packaged, since .gitignore, .rayignore or job.runtime_env.excludes leaves "
                f"it out: put it on storage that the nodes can read (--set {field}=s3://…), or remove that pattern"
            )
        else:
            yield ok(f"{field}: {path} is packaged; recordings that it names by relative paths must be too")


def _check_program(context: Context, config: ScriptRunConfig) -> Iterator[Finding]:
    program = program_of(config)
    if program is None:
        yield ok(f"script.command: {' '.join(config.script.command[:2])} is looked for on the nodes")
    elif program in {file.path for file in context.bundle.tree.files}:
        yield ok(f"script.command: {program} is packaged")
    elif not (context.bundle.root / program).is_file():
        yield problem(f"script.command: {no_such_file(context.bundle.root, program)}")
    else:
        yield problem(
            f"script.command: {program} is not packaged with {context.bundle.root}: start in the folder of the "
            "program, or set job.runtime_env.working_dir; what .gitignore and .rayignore name is left out"
        )
    yield from _check_links(context.bundle.tree)
    is_here = context.on_this_machine and node_count(context.capacity) in (None, 1)
    if is_here and config.job.runtime_env.image_uri is None:
        said = config.script.python_problem("this machine")
        yield from [problem(said)] if said is not None else []


def _check_links(tree: Tree) -> Iterator[Finding]:
    """Public recipes link modules that several of them import, such as the preparation of a corpus."""
    for item in tree.left_out:
        if item.reason == A_LINK_OUT and item.path.endswith(".py"):
            target = (tree.root / item.path).resolve()
            above = Path(os.path.commonpath([tree.root, target]))
            yield problem(
                f"{item.path} is a link to {target}, which is not packaged with {tree.root}: start in {above} with "
                f"--working-dir {tree.root.relative_to(above)} (script.working_dir), or put a copy in the link's place"
            )


def check_storage_path(context: Context) -> Iterator[Finding]:
    """Checks whether all nodes would write to the same folder."""
    assert context.spec is not None
    path, workers = storage_path_of(context.spec.config), context.spec.config.scaling.max_workers
    if is_url(path):
        yield ok(f"run.storage_path: {path} is the same for all nodes")
        return
    fix = "give a folder that all nodes share, or a bucket (--set run.storage_path=s3://…)"
    nodes = node_count(context.capacity)
    if nodes == 1:
        yield ok(f"run.storage_path: {path}; the cluster has one node")
    elif nodes is None and (context.address is None or workers == 1):
        yield ok(f"run.storage_path: {path}; fine on one node")
    elif nodes is None:
        yield warning(f"run.storage_path: {path}: with {workers} workers on several nodes it would be lost; {fix}")
    elif any(Path(path).is_relative_to(folder) for folder in (*OF_ONE_NODE, default_storage_path())):
        yield problem(
            f"run.storage_path: {path}, on a cluster of {nodes} nodes or more: each would write to a disk of its own, "
            f"and no checkpoint would be found again; {fix}"
        )
    elif context.deep:
        yield ok(f"run.storage_path: {path} must be the same folder on all {nodes} nodes; node_storage checks it")
    else:
        yield skipped(
            f"run.storage_path: whether {path} is the same folder on all {nodes} nodes cannot be checked from here; "
            "`rayscribe preflight` checks it on each of them"
        )


def check_program_storage(context: Context) -> Iterator[Finding]:
    """Writes, reads, lists and deletes a small file under run.storage_path; for a training, its inspection does."""
    assert context.spec is not None
    config, here = context.spec.config, context.on_this_machine
    path = storage_path_of(config)
    if not here and not is_url(path) and not Path(path).is_dir():
        yield skipped(f"run.storage_path: {path} is a folder that this machine does not have (the nodes may reach it)")
        return
    try:
        call_with_timeout(lambda: try_out(path, config.run.storage_options), STORAGE_TIMEOUT_S)
    except CallTimeoutError:
        yield skipped(f"run.storage_path: {path} does not respond within {STORAGE_TIMEOUT_S:.0f} s")
    except StorageError as error:
        # A bucket's credentials may be variables of the job.
        if here and not (is_url(path) and variables_of(context.spec.job)):
            yield problem(f"run.storage_path: {error}")
        else:
            yield skipped(f"run.storage_path: {error} (the nodes may reach it)")
    else:
        yield ok(f"run.storage_path: {path} can be written, read and listed")


def node_count(capacity: Capacity | None) -> int | None:
    """How many nodes there are, one more where the cluster can grow; None where that is not known."""
    if capacity is None or not capacity.nodes:
        return None
    return len(capacity.nodes) + any(more > 0 for more in capacity.growth.values())


def _is_relative(path: str) -> bool:
    return not is_absolute(path) and not path.startswith(("~", "$")) and "://" not in path


CHECKS = (
    Check("working_dir", "the working directory is small enough for Ray", check_working_dir),
    Check("packaged_data", "data in the repository is packaged", check_packaged_data),
    Check("storage_path", "all nodes write to the same folder", check_storage_path),
)
OF_PROGRAMS = (Check("storage", "the run's storage can be written, read and listed", check_program_storage),)
