"""Checks of the package, of the run's storage, and of the cluster: whether it responds, is protected, and has room."""

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from jobs.addresses import is_loopback_url
from jobs.clusters.timeouts import CallTimeoutError, call_with_timeout
from jobs.errors import ClusterError
from jobs.model import DEFAULT_QUEUE
from jobs.preflight.context import (
    CAPACITY,
    CLUSTER,
    RECIPE,
    RESPONSE,
    Context,
    DashboardResponse,
    external_url,
    get_metadata,
)
from jobs.scheduler.feasibility import Capacity, never_fits
from jobs.scheduler.limits import QueuesConfig
from jobs.submission.assemble import program_of
from jobs.submission.job_spec import ScriptRunConfig, files_in_package, gang_of, missing_in_package, variables_of
from runtime_env.package import no_such_file, package_size
from runtime_env.tree import A_LINK_OUT, Tree
from trainers.config.locations import default_storage_path, storage_path_of
from trainers.config.storage_location import is_url
from trainers.findings import Finding, check, ok, on_other_machines, problem, skipped, warning
from trainers.storage.factory import tried_out

TOKEN_FIX = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, or the file ~/.ray/auth_token)"
# What pyproject.toml requires.
PYTHONS = ("3.11", "3.12", "3.13")


@check(CLUSTER)
def check_cluster(context: Context) -> Iterator[Finding]:
    """Checks that the cluster responds and accepts our token."""
    assert context.address is not None
    address, response = context.address, context.with_token
    if isinstance(response, ClusterError):
        # A cluster that is down only delays a run, so a submission gets a warning.
        yield problem(str(response)) if context.deep else warning(f"{response}; a submitted run waits for it")
    elif response.status == 401:
        yield problem(f"{address} requires a token (401): {TOKEN_FIX}")
    elif response.status == 403:
        yield problem(f"{address} rejects the token of this machine (403): {TOKEN_FIX} to the cluster's token")
    elif response.status != 200 or "rayVersion" not in response.data:
        yield problem(
            f"{address} responds with {response.status}, but not as a Ray dashboard: give the dashboard's address, "
            "usually http://<head>:8265"
        )
    else:
        yield ok(f"{address} responds")


@check(CLUSTER)
def check_open_dashboard(context: Context) -> Iterator[Finding]:
    """Sends requests without a token, since anyone who can connect to an open dashboard can run code on all nodes."""
    assert context.address is not None
    address, response = context.address, context.without_token
    if isinstance(response, ClusterError):
        yield skipped("the cluster does not respond")
        return
    if response.status != 200:
        yield ok(f"{address} requires a token")
        return
    open_at: str | None = address
    if is_loopback_url(address):
        external = external_url(address)
        open_at = external if external is not None and _is_open(external) else None
    if open_at is None:
        yield ok(f"{address} requires no token, but accepts connections from its own machine only")
    else:
        yield warning(
            f"{open_at} lets anybody who can connect run code on the cluster: start Ray with "
            "--dashboard-host=127.0.0.1 and connect through ssh -L, or with RAY_AUTH_MODE=token on all nodes"
        )


@check(CLUSTER, RESPONSE)
def check_versions(context: Context) -> Iterator[Finding]:
    """Compares the cluster's Ray and Python with this machine's, and its Python with the supported versions."""
    assert isinstance(context.with_token, DashboardResponse)
    data = context.with_token.data
    theirs, python = str(data.get("rayVersion")), str(data.get("pythonVersion"))
    ours, own_python = importlib.metadata.version("ray"), platform.python_version()
    if theirs != ours:
        text = f"Ray is {theirs} on the cluster and {ours} on this machine: install the same on both"
        same_series = _series(theirs) == _series(ours)
        yield warning(text) if same_series else problem(f"{text}; Rayscribe supports one series of Ray at a time")
    if _series(python) not in PYTHONS:
        yield problem(
            f"Python is {python} on the cluster, and Rayscribe needs {PYTHONS[0]} to {PYTHONS[-1]}: change its image"
        )
    elif _series(python) != _series(own_python):
        yield warning(
            f"Python is {python} on the cluster and {own_python} on this machine: a lock file "
            "that was made here may not install there; make it for the cluster's Python"
        )
    elif theirs == ours:
        yield ok(f"Ray {theirs} and Python {python} on the cluster, as on this machine")


@check(RECIPE, CLUSTER, RESPONSE, CAPACITY)
def check_gang(context: Context) -> Iterator[Finding]:
    """Checks whether the complete gang can ever fit."""
    capacity = context.capacity
    assert context.spec is not None and context.address is not None and capacity is not None
    scaling = context.spec.config.scaling
    gang = gang_of(scaling)
    # The service checks the limits of queues; here queues have no limits.
    reason = never_fits(gang, DEFAULT_QUEUE, QueuesConfig(), capacity, context.address)
    if reason is None:
        idle = scaling.idle_gpus(capacity.size)
        fits = f"{_listed(gang.total)} fit on the cluster, which has {_listed(capacity.total)}"
        yield ok(fits) if idle is None else warning(idle)
    else:
        yield problem(reason)


def _is_open(address: str) -> bool:
    try:
        return get_metadata(address, {}).status == 200
    except ClusterError:
        return False


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _listed(resources: Mapping[str, float]) -> str:
    shown = [f"{value:g} {name}" for name, value in sorted(resources.items()) if name in ("CPU", "GPU", "HPU", "TPU")]
    return ", ".join(shown) or "nothing"


STORAGE_TIMEOUT_S = 20.0
# Folders that are local to a machine.
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root")


@check(RECIPE)
def check_working_dir(context: Context) -> Iterator[Finding]:
    """Computes the size of the package."""
    size = package_size(context.bundle.tree, context.bundle.extra)
    yield ok(size.message) if size.fits else problem(size.message)


@check(RECIPE)
def check_packaged_data(context: Context) -> Iterator[Finding]:
    """Checks that all files of the repository that the recipe names are packaged."""
    assert context.spec is not None
    config, root = context.spec.config, context.spec.root
    if isinstance(config, ScriptRunConfig):
        yield from _check_program(context, config)
        return
    # Shipped files need no check, since they were read when they were collected.
    inside = files_in_package(config, shipped=not config.data.ship)
    if not inside:
        yield ok("the recipe names no data in the repository")
        return
    packed = {file.path for file in context.bundle.tree.files}
    for field, path in inside.items():
        name = Path(path).as_posix()
        if (missing := missing_in_package(field, path, root)) is not None:
            yield problem(missing)
        elif name not in packed and not any(file.startswith(f"{name}/") for file in packed):
            yield problem(
                f"{field}: {path} is not packaged, since .gitignore, .rayignore or job.runtime_env.excludes leaves "
                f"it out: put it on storage that the nodes can read (--set {field}=s3://…), or remove that pattern"
            )
        else:
            yield ok(f"{field}: {path} is packaged; recordings to which it has relative paths must be too")


def _check_program(context: Context, config: ScriptRunConfig) -> Iterator[Finding]:
    program = program_of(config)
    if program is None:
        yield ok(f"script.command: {' '.join(config.script.command[:2])} must be available on the nodes")
    elif program in {file.path for file in context.bundle.tree.files}:
        yield ok(f"script.command: {program} is packaged")
    elif not (context.bundle.root / program).is_file():
        yield problem(f"script.command: {no_such_file(context.bundle.root, program)}")
    else:
        yield problem(
            f"script.command: {program} is not packaged with {context.bundle.root}: start in the folder of the "
            "program, or set job.runtime_env.working_dir; files in .gitignore and .rayignore are left out"
        )
    yield from _check_links(context.bundle.tree)
    is_here = not context.elsewhere and node_count(context.capacity) in (None, 1)
    if is_here and config.job.runtime_env.image_uri is None:
        found = config.script.python_problem("this machine")
        yield from [problem(found)] if found is not None else []


def _check_links(tree: Tree) -> Iterator[Finding]:
    """Reports Python files that are links out of the package, as in public recipes that share modules."""
    for item in tree.left_out:
        if item.reason == A_LINK_OUT and item.path.endswith(".py"):
            target = (tree.root / item.path).resolve()
            above = Path(os.path.commonpath([tree.root, target]))
            yield problem(
                f"{item.path} is a link to {target}, which is not packaged with {tree.root}: start in {above} with "
                f"--working-dir {tree.root.relative_to(above)} (script.working_dir), or put a copy in the link's place"
            )


@check(RECIPE)
def check_storage_path(context: Context) -> Iterator[Finding]:
    """Checks that all nodes would write to the same folder."""
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
            f"run.storage_path: {path}, on a cluster of {nodes} nodes or more: each node would write to its own disk, "
            f"and would not find checkpoints of others; {fix}"
        )
    elif context.deep:
        yield ok(f"run.storage_path: {path} must be the same folder on all {nodes} nodes; node_storage checks it")
    else:
        yield skipped(
            f"run.storage_path: whether {path} is the same folder on all {nodes} nodes cannot be checked from here; "
            "`rayscribe preflight` checks it on each node"
        )


@check(RECIPE)
def check_storage(context: Context) -> Iterator[Finding]:
    """Writes, reads, lists and deletes a small file under run.storage_path; for trainings, the inspection does this."""
    assert context.spec is not None
    path, options = storage_path_of(context.spec.config), context.spec.config.run.storage_options

    try_it = partial(tried_out, "run.storage_path", path, options, elsewhere=context.elsewhere)
    try:
        found = call_with_timeout(try_it, STORAGE_TIMEOUT_S)
    except CallTimeoutError:
        found = skipped(f"run.storage_path: {path} does not respond within {STORAGE_TIMEOUT_S:.0f} s")
    # The job's variables may include a bucket's credentials.
    yield on_other_machines(found) if is_url(path) and variables_of(context.spec.job) else found


def node_count(capacity: Capacity | None) -> int | None:
    """Returns the number of nodes, plus one if the cluster can grow; None if it is not known."""
    if capacity is None or not capacity.nodes:
        return None
    return len(capacity.nodes) + any(more > 0 for more in capacity.growth.values())


OF_PACKAGE = (check_working_dir, check_packaged_data, check_storage_path)
OF_CLUSTER = (check_cluster, check_open_dashboard, check_versions, check_gang)
# The inspection of trainings has a check of the same name.
OF_PROGRAMS = (check_storage,)
