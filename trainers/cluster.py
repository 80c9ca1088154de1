"""The Ray cluster: joining or starting one, what it can hold, and the lines that workers say."""

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray

from trainers.config import TrainConfig
from trainers.errors import ResourceError

POLL_S = 0.2
LOOPBACK = "127.0.0.1"
# One logical CPU stays free for Ray Data while workers hold theirs (ray#41603: without it, a hang).
CPUS_FOR_DATA = 1.0


@contextlib.contextmanager
def connected(config: TrainConfig, address: str | None = None) -> Iterator[None]:
    """Joins the cluster at `address` or RAY_ADDRESS, or starts a Ray on this machine that fits the config.

    One that was started here is shut down at the end; one that this process had joined before is left as it is.

    Raises:
        ResourceError: no cluster answers at the address.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            wanted = config.scaling.worker_resources["CPU"] * config.scaling.num_workers + CPUS_FOR_DATA
            cpus = max(os.cpu_count() or 1, math.ceil(wanted))
            # Without a dashboard of its own, Ray Train asks whatever dashboard listens on the default port whether its
            # controller lives; another Ray's answers no, and the workers are ended in mid-training.
            # "local": without it, ray.init joins whatever Ray another user started on this machine.
            ray.init("local", num_cpus=cpus, include_dashboard=True, _node_ip_address=LOOPBACK, **quiet)
    except (ConnectionError, TimeoutError, ValueError) as error:
        raise ResourceError(
            f"no Ray cluster answers at {address or 'this machine'}: {error}; check --address or RAY_ADDRESS, "
            "or unset it to use this machine alone"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def check_capacity(config: TrainConfig) -> None:
    """Refuses a gang of workers that the cluster can never hold, with the arithmetic.

    Raises:
        ResourceError: names the resource, what is asked for, and what the cluster can grow to.
    """
    most = largest_cluster()
    part = config.scaling
    for name, each in part.worker_resources.items():
        wanted = each * part.num_workers
        held = most.get(name, 0.0)
        if wanted > held:
            fits = int(held // each)
            raise ResourceError(
                f"scaling.num_workers {part.num_workers} × {each:g} {name} = {wanted:g} {name}, but the cluster has "
                f"{held:g} and cannot grow beyond: set scaling.num_workers to at most {fits}, "
                f"lower scaling.resources_per_worker.{name}, or use a larger cluster"
            )


def largest_cluster() -> dict[str, float]:
    """Logical resources that the cluster has, or can grow to where an autoscaler runs."""
    now: dict[str, float] = ray.cluster_resources()
    return {name: max(now.get(name, 0.0), limit) for name, limit in {**now, **_autoscaler_limits()}.items()}


def _autoscaler_limits() -> Mapping[str, float]:
    """The most the autoscaler may grow the cluster to; empty without one. Ray has no public call for it."""
    try:
        from ray._private.state import state  # noqa: PLC0415

        limits = state.get_max_resources_from_cluster_config()
    except (ImportError, AttributeError):
        return {}
    return limits or {}


class _Lines:
    """Holds lines that workers said until the driver takes them."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def put(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        taken, self._lines = self._lines, []
        return taken


@contextlib.contextmanager
def lines_of_workers(say: Callable[[str], None]) -> Iterator[Any]:
    """Gives the handle that workers say lines to; each is said here once, while the block runs."""
    actor: Any = ray.remote(num_cpus=0)(_Lines).remote()
    done = threading.Event()

    def pump() -> None:
        while not done.wait(POLL_S):
            _say_all(actor, say)

    thread = threading.Thread(target=pump, name="worker-lines", daemon=True)
    thread.start()
    try:
        yield actor
    finally:
        done.set()
        thread.join()
        _say_all(actor, say)
        ray.kill(actor)


def _say_all(actor: Any, say: Callable[[str], None]) -> None:
    try:
        for line in ray.get(actor.take.remote(), timeout=10):
            say(line)
    except ray.exceptions.RayError:  # the cluster is going away; its own error says so
        return
