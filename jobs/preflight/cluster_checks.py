"""Checks that ask the cluster: does it answer us, answer strangers, fit the code, and hold the gang."""

import platform
from collections.abc import Callable, Iterator, Mapping

import ray

from jobs.errors import ClusterError
from jobs.model import DEFAULT_QUEUE
from jobs.preflight.case import Case
from jobs.preflight.dashboard import Answer, ask, is_loopback, seen_from_outside
from jobs.preflight.finding import Access, Check, Note, fault, ok, skipped, warning
from jobs.scheduler.limits import QueuesConfig
from jobs.scheduler.policy import Capacity, never_fits
from jobs.submission.job_spec import JobSpec
from trainers.config.schema import CPUS_FOR_DATA

TOKEN_FIX = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, or the file ~/.ray/auth_token)"
# What pyproject.toml asks for.
PYTHONS = ("3.11", "3.12")


def check_cluster(case: Case) -> Iterator[Note]:
    """Asks whether it is there, and whether it takes our token."""
    assert case.target is not None
    address, signed = case.target.address, case.signed
    if isinstance(signed, ClusterError):
        # A cluster that is down for an hour delays a run; it does not make it wrong.
        yield fault(str(signed)) if case.deep else warning(f"{signed}; a submitted run waits for it")
    elif signed.status == 401:
        yield fault(f"{address} asks for a token (401): {TOKEN_FIX}")
    elif signed.status == 403:
        yield fault(f"{address} refuses the token that was found here (403): {TOKEN_FIX} to the cluster's own")
    elif signed.status != 200 or "rayVersion" not in signed.data:
        yield fault(
            f"{address} answers {signed.status}, but not as a Ray dashboard: give the dashboard's address, "
            "usually http://<head>:8265"
        )
    else:
        yield ok(f"{address} answers")


def check_open_dashboard(case: Case) -> Iterator[Note]:
    """Asks like a stranger: whoever reaches an open dashboard runs what he likes on all nodes."""
    assert case.target is not None
    address, unsigned = case.target.address, case.unsigned
    if isinstance(unsigned, ClusterError):
        yield skipped("the cluster does not answer")
        return
    if unsigned.status != 200:
        yield ok(f"{address} asks for a token")
        return
    open_at: str | None = address
    if is_loopback(address):
        outside = seen_from_outside(address)
        open_at = outside if outside is not None and _answers(outside) else None
    if open_at is None:
        yield ok(f"{address} asks for no token, and is reached from its own machine only")
    else:
        yield warning(
            f"{open_at} lets anybody who reaches it run code on the cluster: start Ray with --dashboard-host=127.0.0.1 "
            "and reach it through ssh -L, or with RAY_AUTH_MODE=token on all nodes"
        )


def check_versions(case: Case) -> Iterator[Note]:
    """Compares the cluster's Ray and Python with those that this Rayscribe runs on."""
    assert isinstance(case.signed, Answer)
    theirs, python = str(case.signed.data.get("rayVersion")), str(case.signed.data.get("pythonVersion"))
    sound = True
    if theirs != ray.__version__:
        same_series = theirs.split(".")[:2] == ray.__version__.split(".")[:2]
        text = f"Ray is {theirs} on the cluster and {ray.__version__} here: install the same on both"
        yield warning(text) if same_series else fault(f"{text}; Rayscribe is made for one series of Ray at a time")
        sound = False
    if _series(python) not in PYTHONS:
        yield fault(f"Python is {python} on the cluster, and Rayscribe needs {' or '.join(PYTHONS)}: change its image")
        sound = False
    elif _series(python) != _series(platform.python_version()):
        yield warning(
            f"Python is {python} on the cluster and {platform.python_version()} here: a lock of packages that was made "
            "here may not install there; make it for the cluster's Python"
        )
        sound = False
    if sound:
        yield ok(f"Ray {theirs} and Python {python} on the cluster, as here")


def check_gang(case: Case) -> Iterator[Note]:
    """Reckons whether the whole gang can ever fit."""
    assert case.spec is not None and case.target is not None
    gang, capacity = case.spec.gang, case.capacity
    if capacity is None:
        yield skipped("the cluster does not say what it has")
        return
    # Caps of queues are the service's own to look at; here every queue is without them.
    reason = never_fits(gang, DEFAULT_QUEUE, QueuesConfig(), capacity, case.target.address)
    if reason is None:
        yield ok(f"the cluster can hold {_listed(gang.total)}; it has {_listed(capacity.total)}")
    elif _only_data_is_left_out(case.spec, capacity):
        yield skipped("the workers fit, but not Ray Data beside them; see data_cpus")
    else:
        yield fault(reason)


def check_data_cpus(case: Case) -> Iterator[Note]:
    """Looks whether the workers leave CPUs for Ray Data (ray#41603: without, a hang)."""
    assert case.spec is not None
    capacity = case.capacity
    if capacity is None:
        yield skipped("the cluster does not say what it has")
        return
    scaling = case.spec.config.scaling
    each, most = scaling.worker_resources["CPU"], capacity.can_grow_to.get("CPU", 0.0)
    taken = each * scaling.num_workers
    if _only_data_is_left_out(case.spec, capacity):
        yield fault(
            f"scaling.num_workers {scaling.num_workers} × {each:g} CPU = {taken:g} of the cluster's {most:g} CPU "
            f"leaves less than {CPUS_FOR_DATA:g} for Ray Data, which would wait for ever: set scaling.num_workers to "
            f"at most {int((most - CPUS_FOR_DATA) // each)}, or scaling.resources_per_worker.CPU lower"
        )
    elif taken > most:
        yield skipped("the workers alone do not fit; see gang")
    else:
        yield ok(f"the workers take {taken:g} of {most:g} CPU")


def _only_data_is_left_out(spec: JobSpec, capacity: Capacity) -> bool:
    workers = spec.config.scaling.worker_resources["CPU"] * spec.config.scaling.num_workers
    most = capacity.can_grow_to.get("CPU", 0.0)
    return workers <= most < workers + CPUS_FOR_DATA


def _answers(address: str) -> bool:
    try:
        return ask(address, with_token=False).status == 200
    except ClusterError:
        return False


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _listed(resources: Mapping[str, float]) -> str:
    shown = [f"{value:g} {name}" for name, value in sorted(resources.items()) if name in ("CPU", "GPU", "TPU")]
    return ", ".join(shown) or "nothing"


def _if_it_answers(look: Callable[[Case], Iterator[Note]]) -> Callable[[Case], Iterator[Note]]:
    def run(case: Case) -> Iterator[Note]:
        if case.answers:
            yield from look(case)
        else:
            yield skipped("the cluster does not answer us")

    return run


CHECKS = (
    Check("cluster", "the cluster answers, and takes our token", Access.CLUSTER, check_cluster),
    Check("open_dashboard", "strangers cannot run code on it", Access.CLUSTER, check_open_dashboard),
    Check("versions", "Ray and Python are the cluster's", Access.CLUSTER, _if_it_answers(check_versions)),
    Check("gang", "the cluster can hold all workers at once", Access.CLUSTER, _if_it_answers(check_gang)),
    Check("data_cpus", "CPUs are left for Ray Data", Access.CLUSTER, _if_it_answers(check_data_cpus)),
)
