"""Checks of what goes along and where the run is kept, that ask nobody."""

from collections.abc import Iterator
from pathlib import Path

from jobs.preflight.case import Case
from jobs.preflight.finding import Access, Check, Note, fault, ok, skipped, warning
from jobs.scheduler.policy import Capacity
from runtime_env.tree import reckon
from trainers.config.locations import RAY_DEFAULT_STORAGE
from trainers.config.schema import S3_SCHEME, is_absolute

# Folders that are a machine's own wherever they are.
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root")
DATA_FIELDS = ("train", "validation", "test")


def check_working_dir(case: Case) -> Iterator[Note]:
    """Reckons the size of what goes along."""
    size = reckon(case.bundle.tree, case.bundle.extra)
    yield ok(size.message) if size.fits else fault(size.message)


def check_packaged_data(case: Case) -> Iterator[Note]:
    """Looks whether files that the recipe names inside of the repository go along."""
    assert case.spec is not None and case.root is not None
    data = case.spec.config.data
    paths = {f"data.{name}": getattr(data, name) for name in DATA_FIELDS}
    inside = {field: path for field, path in paths.items() if path is not None and _is_relative(path)}
    if not inside:
        yield ok("the recipe names no data inside of the repository")
        return
    packed = {file.path for file in case.bundle.tree.files}
    for field, path in inside.items():
        if not (case.root / path).is_file():
            yield fault(f"{field}: {path}: no such file in {case.root}; correct it (--set {field}=…)")
        elif Path(path).as_posix() not in packed:
            yield fault(
                f"{field}: {path} does not go along, since .gitignore, .rayignore or job.runtime_env.excludes leaves "
                f"it out: put it on storage that the nodes see (--set {field}=s3://…), or take it out of there"
            )
        else:
            yield ok(f"{field}: {path} goes along; recordings that it names by relative paths must too")


def check_storage_path(case: Case) -> Iterator[Note]:
    """Looks whether all nodes would write to the same place."""
    assert case.spec is not None
    path, workers = case.spec.config.run.storage_path, case.spec.config.scaling.num_workers
    if path is not None and path.startswith(S3_SCHEME):
        yield ok(f"run.storage_path: {path} is the same from everywhere")
        return
    what = path if path is not None else f"null, which means {RAY_DEFAULT_STORAGE} of each node"
    fix = "give a folder that all nodes share, or a bucket (--set run.storage_path=s3://…)"
    nodes = node_count(case.capacity)
    if nodes == 1:
        yield ok(f"run.storage_path: {what}; the cluster has one node")
    elif nodes is None and (case.address is None or workers == 1):
        yield ok(f"run.storage_path: {what}; fine on one node")
    elif nodes is None:
        yield warning(f"run.storage_path: {what}: with {workers} workers on several nodes it would be lost; {fix}")
    elif path is None or _is_within(path, OF_ONE_NODE):
        yield fault(
            f"run.storage_path: {what}, on a cluster of {nodes} nodes or more: each would write to a disk of its own, "
            f"and no checkpoint would be found again; {fix}"
        )
    elif case.deep:
        yield ok(f"run.storage_path: {path} must be the same folder on all {nodes} nodes; node_storage looks")
    else:
        yield skipped(
            f"run.storage_path: whether {path} is the same folder on all {nodes} nodes is not told from here; "
            "`rayscribe preflight` looks from each of them"
        )


def node_count(capacity: Capacity | None) -> int | None:
    """How many nodes there are, one more where the cluster can grow; None where that is not known."""
    if capacity is None or not capacity.nodes:
        return None
    grows = any(most > capacity.total.get(name, 0.0) for name, most in capacity.can_grow_to.items())
    return len(capacity.nodes) + (1 if grows else 0)


def _is_relative(path: str) -> bool:
    return not is_absolute(path) and not path.startswith(("~", "$")) and "://" not in path


def _is_within(path: str, folders: tuple[str, ...]) -> bool:
    return any(Path(path) == Path(folder) or Path(folder) in Path(path).parents for folder in folders)


CHECKS = (
    Check("working_dir", "the working directory is small enough for Ray", Access.NOTHING, check_working_dir),
    Check("packaged_data", "data inside of the repository goes along", Access.NOTHING, check_packaged_data),
    Check("storage_path", "all nodes write to the same place", Access.NOTHING, check_storage_path),
)
