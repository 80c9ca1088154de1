"""Checks that call the cluster: is it up, is it protected, do its versions match, can it hold the gang."""

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import wraps

from jobs.addresses import is_loopback_url
from jobs.errors import ClusterError
from jobs.model import DEFAULT_QUEUE
from jobs.preflight.context import Context
from jobs.preflight.dashboard import DashboardResponse, external_url, get_metadata
from jobs.scheduler.feasibility import Capacity, never_fits
from jobs.scheduler.limits import QueuesConfig
from jobs.submission.job_spec import JobSpec, gang_of
from trainers.config.parts.scaling_part import CPUS_FOR_DATA
from trainers.findings import Check, Finding, ok, problem, skipped, warning

TOKEN_FIX = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, or the file ~/.ray/auth_token)"
# What pyproject.toml requires.
PYTHONS = ("3.11", "3.12", "3.13")


def check_cluster(context: Context) -> Iterator[Finding]:
    """Checks that the cluster is there and accepts our token."""
    assert context.address is not None
    address, response = context.address, context.with_token
    if isinstance(response, ClusterError):
        # A cluster that is down for an hour delays a run; it does not make it wrong.
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


def check_open_dashboard(context: Context) -> Iterator[Finding]:
    """Requests without a token: whoever reaches an open dashboard can run any code on all nodes."""
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
        yield ok(f"{address} requires no token, and can be reached from its own machine only")
    else:
        yield warning(
            f"{open_at} lets anybody who reaches it run code on the cluster: start Ray with --dashboard-host=127.0.0.1 "
            "and reach it through ssh -L, or with RAY_AUTH_MODE=token on all nodes"
        )


def _needs_response(run: Callable[[Context], Iterator[Finding]]) -> Callable[[Context], Iterator[Finding]]:
    """Makes a check report that it was skipped where the cluster does not accept us; `check_cluster` reports why."""

    @wraps(run)
    def check(context: Context) -> Iterator[Finding]:
        if context.cluster_accepts_us:
            yield from run(context)
        else:
            yield skipped("the cluster does not respond to us")

    return check


@_needs_response
def check_versions(context: Context) -> Iterator[Finding]:
    """Compares the cluster's Ray and Python with those that this Rayscribe runs on."""
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


@_needs_response
def check_gang(context: Context) -> Iterator[Finding]:
    """Computes whether the complete gang can ever fit."""
    assert context.spec is not None and context.address is not None
    gang, capacity = gang_of(context.spec.config.scaling), context.capacity
    if capacity is None:
        yield skipped("the cluster does not report its resources")
        return
    # The service checks the limits of queues; here no queue has any.
    reason = never_fits(gang, DEFAULT_QUEUE, QueuesConfig(), capacity, context.address)
    if reason is None:
        idle = context.spec.config.scaling.idle_gpus(capacity.size)
        fits = f"the cluster can hold {_listed(gang.total)}; it has {_listed(capacity.total)}"
        yield ok(fits) if idle is None else warning(idle)
    elif _only_data_does_not_fit(context.spec, capacity):
        yield skipped("the workers fit, but not Ray Data with them; see data_cpus")
    else:
        yield problem(reason)


@_needs_response
def check_data_cpus(context: Context) -> Iterator[Finding]:
    """Checks that the workers leave CPUs for Ray Data (ray#41603: without, it hangs)."""
    assert context.spec is not None
    capacity = context.capacity
    if capacity is None:
        yield skipped("the cluster does not report its resources")
        return
    scaling = context.spec.config.scaling
    each, most = scaling.worker_resources["CPU"], capacity.size.get("CPU", 0.0)
    taken = each * scaling.max_workers
    field = "scaling.num_workers.max" if scaling.is_elastic else "scaling.num_workers"
    if _only_data_does_not_fit(context.spec, capacity):
        yield problem(
            f"{field} {scaling.max_workers} × {each:g} CPU = {taken:g} of the cluster's {most:g} CPU "
            f"leaves less than {CPUS_FOR_DATA:g} for Ray Data, which would wait forever: set {field} to "
            f"at most {int((most - CPUS_FOR_DATA) // each)}, or scaling.resources_per_worker.CPU lower"
        )
    elif taken > most:
        yield skipped("the workers alone do not fit; see gang")
    else:
        yield ok(f"the workers take {taken:g} of {most:g} CPU")


def _only_data_does_not_fit(spec: JobSpec, capacity: Capacity) -> bool:
    workers = spec.config.scaling.worker_resources["CPU"] * spec.config.scaling.max_workers
    most = capacity.size.get("CPU", 0.0)
    return workers <= most < workers + CPUS_FOR_DATA


def _is_open(address: str) -> bool:
    try:
        return get_metadata(address, with_token=False).status == 200
    except ClusterError:
        return False


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _listed(resources: Mapping[str, float]) -> str:
    shown = [f"{value:g} {name}" for name, value in sorted(resources.items()) if name in ("CPU", "GPU", "HPU", "TPU")]
    return ", ".join(shown) or "nothing"


# Those that mean something without a recipe.
WITHOUT_RECIPE = (
    Check("cluster", "the cluster responds, and accepts our token", check_cluster),
    Check("open_dashboard", "unauthenticated clients cannot run code on it", check_open_dashboard),
    Check("versions", "Ray and Python are the cluster's", check_versions),
)
CHECKS = (
    *WITHOUT_RECIPE,
    Check("gang", "the cluster can hold all workers at once", check_gang),
    Check("data_cpus", "CPUs are left for Ray Data", check_data_cpus),
)
