"""Connects to a Ray cluster or starts one, and reports its capacity, its lost nodes and the coordinator's state."""

import contextlib
import logging
import math
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any
from urllib.parse import urlsplit

import grpc
import ray
from ray import cloudpickle
from ray._private.authentication.authentication_token_setup import (
    enable_token_auth_by_default,
    maybe_enable_token_auth_if_token_available,
)
from ray._private.state import state
from ray.core.generated.gcs_service_pb2 import CheckAliveRequest  # type: ignore[attr-defined]
from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.config.parts.scaling_part import CPUS_FOR_DATA, HPU, TYPE_PREFIX, WITHOUT_GPU, ScalingPart
from trainers.config.schema import AnyConfig
from trainers.config.storage_location import in_home, without_password
from trainers.config.submitted import GROWTH_VARIABLE, read_growth
from trainers.distributed.console import show
from trainers.distributed.console.events import Stage
from trainers.distributed.coordinator import RESTART, Coordinator, EndRequest, WorkerUpdate
from trainers.distributed.local_ray import (
    LOOPBACK,
    RAYS_OWN,
    START_TIMEOUT_S,
    LocalRay,
    gcs_address_at,
    is_own_host,
    local_ray,
    ray_lives,
)
from trainers.distributed.machine import cpus_of_this_machine
from trainers.errors import ResourceError

POLL_S = 0.2
RAY = "Ray"
# Set by install_and_run.sh, see runtime_env.build.
PY_EXECUTABLE = "RAYSCRIBE_PY_EXECUTABLE"
# An actor responds in milliseconds; if it does not, it or its node is lost.
COORDINATOR_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
# Seconds between two probes of nodes, and the number of consecutive responses after which nodes count as alive.
NODE_PROBE_S, NODE_PROBES = 1.0, 3
# The cluster may notice a lost node later than Ray Train: after five failed health checks, 3 s apart (Ray's
# health_check_failure_threshold and _period_ms). If the node does not respond, each check takes 10 s more.
LOST_NODE_TIMEOUT_S, SILENT_NODE_TIMEOUT_S = 20.0, 60.0
# How long Ray Train waits for capacity each time that it starts a worker group. A fixed number of workers waits as
# often as failures are allowed; an autoscaler takes minutes to add a node. An elastic number of workers waits for
# planned nodes, which may be lost, a little longer than Ray Train takes to plan again. Ray's default is 60.
FIXED_START_TIMEOUT_S, ELASTIC_START_TIMEOUT_S = "600", "25"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"


@contextlib.contextmanager
def connected(
    config: AnyConfig, address: str | None = None, *, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Joins the cluster at `address` or RAY_ADDRESS, or starts a Ray on this machine that fits the config.

    A Ray started here is shut down at the end; a cluster that this process had joined before stays connected. An
    address is host:port, or the URL of the dashboard of a Ray on this host. `meanwhile` is called while a Ray starts,
    or before a cluster is joined.

    Raises:
        ResourceError: no cluster responds at the address, or Ray does not start.
    """
    if ray.is_initialized():
        meanwhile()
        yield
        return
    address = _gcs_address(address or os.environ.get("RAY_ADDRESS"))
    if token := os.environ.get(TOKEN_PATH):
        # Absolute, since Ray is started and joined in other working directories.
        os.environ[TOKEN_PATH] = str(in_home(token).absolute())
    name = config.run.name or ""
    quiet: dict[str, Any] = {"run_name": name, "log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    # Otherwise Ray Train prints each line of a worker a second time, to the other stream.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    # Seconds between two polls of the workers by Ray Train's controller; each poll takes one report from each worker.
    # With the default of 2, a run that resumes with ten checkpoints would wait for 20 s.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", start_timeout_s(config))
    with contextlib.ExitStack() as stack:
        if address:
            meanwhile()
            show(Stage(RAY, f"joining the cluster at {without_password(address)}"))
            _join(address, quiet)
        else:

            def load() -> None:
                meanwhile()
                show(Stage(RAY, "starting on this machine"))

            _join_own(stack.enter_context(_own_ray(config, load)), quiet)
        stack.callback(ray.shutdown)
        yield


def _join(address: str, quiet: Mapping[str, Any]) -> None:
    try:
        _check_answers(address)
        if _demands_token(address):
            # `ray start` uses the user's token file if there is one; `ray.init` would not send that token.
            logging.getLogger(maybe_enable_token_auth_if_token_available.__module__).setLevel(logging.ERROR)
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        _init(address=address, runtime_env=_surroundings({"RAY_ADDRESS": address}), **quiet)
    except (ConnectionError, TimeoutError, ValueError) as error:
        raise ResourceError(
            f"no Ray cluster answers at {address}: {error}; check --address or RAY_ADDRESS, or unset it to use only "
            "this machine"
        ) from error


def _join_own(local: LocalRay, quiet: Mapping[str, Any]) -> None:
    """Joins a Ray that was started here; retries, since on a loaded machine `ray.init` does not wait long enough."""
    surroundings = _surroundings({"RAY_API_SERVER_ADDRESS": local.dashboard})
    start_s = time.monotonic()
    while True:
        try:
            _init(address=local.address, runtime_env=surroundings, _node_ip_address=LOOPBACK, **quiet)
            return
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            ray.shutdown()
            lives, waited_s = ray_lives(local.folder), time.monotonic() - start_s
            if lives and waited_s < START_TIMEOUT_S:
                time.sleep(POLL_S)
                continue
            what = f"has not answered in {waited_s:.0f} s" if lives else "has ended"
            raise ResourceError(
                f"the Ray that was started on this machine for this command {what}: {error}; its logs are in "
                f"{local.folder / RAYS_OWN}/session_latest/logs; if the machine is overloaded or short of memory, end "
                "other programs, or lower scaling.num_workers"
            ) from error


def _init(*, run_name: str, **arguments: Any) -> None:
    """Joins a cluster, whose dashboard then shows the run's name; workers do not get our working directory.

    Workers import from their working directory first; in /tmp, that would be files of any user of the machine.
    """
    # For a submitted job, the dashboard shows the metadata of the submission instead.
    named = JobConfig(metadata={"job_name": run_name, "rayscribe_run": run_name})
    with contextlib.chdir("/"):
        ray.init(job_config=named, **arguments)


def start_timeout_s(config: AnyConfig) -> str:
    """Returns the value of RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S."""
    return ELASTIC_START_TIMEOUT_S if config.scaling.is_elastic else FIXED_START_TIMEOUT_S


def _own_ray(config: AnyConfig, meanwhile: Callable[[], None]) -> contextlib.AbstractContextManager[LocalRay]:
    """Returns a context manager that runs a private Ray on this machine with enough CPUs for the config."""
    wanted = config.scaling.worker_resources["CPU"] * config.scaling.max_workers + CPUS_FOR_DATA
    set_own_token()
    # Also for this process, which read Ray's environment variables at import.
    logging.getLogger(enable_token_auth_by_default.__module__).setLevel(logging.ERROR)
    enable_token_auth_by_default()
    cpus = max(cpus_of_this_machine(), math.ceil(wanted))
    return local_ray(num_cpus=cpus, environment=os.environ, meanwhile=meanwhile)


def _gcs_address(address: str | None) -> str | None:
    """Resolves an address for a driver; the URL of a dashboard, as for Ray's job commands, becomes host:port."""
    if address is None or not address.startswith(("http://", "https://")):
        return address
    parts = urlsplit(address)
    if is_own_host(parts.hostname or "") and (found := gcs_address_at(parts.port or 80)):
        return found
    address = without_password(address)
    raise ResourceError(
        f"{address} is not the dashboard of a Ray on this host, and a training cannot join one on another: submit a "
        f"job (rayscribe submit RECIPE --address {address}), or unset RAY_ADDRESS to use only this machine"
    )


def set_own_token() -> None:
    """Sets a token for the Ray that is about to start here, unless the user has one.

    Otherwise `ray.init` writes a token to ~/.ray/auth_token, which every later `ray start` requires of its clients.
    """
    chosen = any(name in os.environ for name in ("RAY_AUTH_TOKEN", TOKEN_PATH))
    if not chosen and not in_home("~/.ray/auth_token").exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _demands_token(address: str) -> bool:
    """Returns True if the control store at host:port refuses calls without a token.

    A process that has loaded a token also requires it of workers. In a cluster without a token, workers have none, and
    would never respond.
    """
    try:
        # Like Ray, bypass the user's proxy.
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            NodeInfoGcsServiceStub(channel).CheckAlive(CheckAliveRequest(), timeout=CONNECT_TIMEOUT_S)
    except grpc.RpcError as error:
        return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def _check_answers(address: str) -> None:
    """Raises ConnectionError within seconds if no server listens at the address; Ray itself waits for minutes.

    Addresses in other forms than host:port are left to Ray.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ConnectionError(f"no server listens at {host}:{port} ({error})") from error


def _surroundings(cluster: Mapping[str, str]) -> dict[str, Any]:
    """Returns the runtime_env of everything that this driver starts, with the variable that identifies the cluster.

    Ray Train asks the state API whether its controller is alive. Without this variable, it asks the Ray that was
    started last on the machine. If that is another Ray, it does not know the controller, so Ray Train ends the workers
    during training.
    """
    # With it, workers start with the packages that install_and_run.sh has installed for this driver.
    starter = os.environ.get(PY_EXECUTABLE)
    return {"env_vars": dict(cluster), **({"py_executable": starter} if starter else {})}


def package_of_job() -> str | None:
    """Returns the URI of the job's working directory, which every worker has; None outside of a job."""
    uri = ray.get_runtime_context().runtime_env.get("working_dir")
    return None if uri is None else str(uri)


def check_capacity(config: AnyConfig) -> None:
    """Refuses a worker group that the cluster can never hold; warns if GPUs of the cluster are not requested.

    Raises:
        ResourceError: a resource is too small. The message has it, the requested amount and the cluster's limit.
    """
    part = config.scaling
    most = largest_cluster(part.selects)
    field = "scaling.num_workers.min" if part.is_elastic else "scaling.num_workers"
    selected = f", on nodes that scaling.label_selector {part.label_selector} selects," if part.label_selector else ""
    for name, each in part.worker_resources.items():
        wanted = each * part.min_workers
        held = most.get(name, 0.0)
        if wanted > held:
            fits = int(held // each)
            fewer = f"set {field} to at most {fits}, " if fits else ""
            raise ResourceError(
                f"{field} {part.min_workers} × {each:g} {name} = {wanted:g} {name}, but the cluster{selected} has "
                f"{held:g} and cannot grow beyond: {fewer}{_less_of(name, part, most)}, or use a larger cluster; if an "
                f"autoscaler adds nodes, export the limit, {GROWTH_VARIABLE}={name}=…, before `ray start` of the head"
            )
    if (idle := part.idle_gpus(most)) is not None:
        show(f"warning: {idle}")


def _less_of(name: str, part: ScalingPart, most: Mapping[str, float]) -> str:
    """Returns how to change a recipe so that it needs less of a resource."""
    if name.startswith(TYPE_PREFIX):
        types = ", ".join(sorted(each.removeprefix(TYPE_PREFIX) for each in most if each.startswith(TYPE_PREFIX)))
        return f"set scaling.accelerator_type to one that it has ({types or 'it has none'})"
    if most.get(name):
        return f"lower scaling.resources_per_worker.{name}"
    if part.accelerator is not None and name in ("GPU", HPU):
        return "set scaling.accelerator: cpu"
    return WITHOUT_GPU if name == "GPU" else f"lower scaling.resources_per_worker.{name}"


def largest_cluster(selects: Callable[[Mapping[str, str]], bool]) -> dict[str, float]:
    """Returns the logical resources of nodes with selected labels; for each, the autoscaler's limit if larger."""
    now: dict[str, float] = {}
    for node in node_resources(selects).values():
        for name, held in node.items():
            now[name] = now.get(name, 0.0) + held
    limits = read_growth(os.environ.get(GROWTH_VARIABLE, ""))
    return {name: max(now.get(name, 0.0), limit) for name, limit in {**now, **limits}.items()}


@contextlib.contextmanager
def open_coordinator() -> Iterator[Any]:
    """Yields the handle of a `coordinator.Coordinator` on this node, where it survives the loss of worker nodes."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kind: Any = ray.remote(num_cpus=0)(Coordinator)
    # The actor may be killed with the workers if memory runs out.
    actor = kind.options(scheduling_strategy=here, max_restarts=-1).remote()
    try:
        yield actor
    finally:
        ray.kill(actor)


def _response(call: Any) -> Any:
    """Returns the coordinator's response to a call; None if the coordinator is lost."""
    try:
        return ray.get(call, timeout=COORDINATOR_TIMEOUT_S)
    except ray.exceptions.RayError:
        return None


def poll_coordinator(coordinator: Any) -> WorkerUpdate | None:
    """Returns the changes since the last poll; None if the coordinator is lost."""
    update: WorkerUpdate | None = _response(coordinator.poll.remote())
    return update


def kill_controller(coordinator: Any) -> bool:
    """Kills Ray Train's controller to end the thread that waits for it; returns False if that is not possible."""
    try:
        controller = ray.get(coordinator.controller.remote(), timeout=COORDINATOR_TIMEOUT_S)
        if controller is not None:
            ray.kill(cloudpickle.loads(controller))
    except (ray.exceptions.RayError, RuntimeError, ValueError):
        return False
    return controller is not None


def stop_requested(coordinator: Any) -> bool:
    """Returns True if a stop was requested; False if the coordinator is lost."""
    return bool(_response(coordinator.stop_requested.remote()))


def end_request(coordinator: Any) -> EndRequest | None:
    """Returns the request to the workers; None if there is none, or the coordinator does not respond."""
    request: EndRequest | None = _response(coordinator.end_request.remote())
    return request


def restart_reason(coordinator: Any) -> str | None:
    """Returns why the workers were restarted; None if they were not, or the coordinator does not respond."""
    response: tuple[str, str | None] | None = _response(coordinator.posted.remote(RESTART))
    return response[1] if response is not None else None


def driver_node_id() -> str:
    """Returns Ray's id of the node on which this driver runs."""
    return ray.get_runtime_context().get_node_id()


def living_nodes() -> set[str]:
    """Returns the ids of the nodes that the cluster considers alive."""
    return set(node_resources())


def node_names(nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns names of nodes of `ray.nodes` for messages, by id: the address, plus the id if nodes share an address."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
    times = Counter(addresses.values())
    return {
        node: address if times[address] == 1 else f"{address} (node {node[:8]})" for node, address in addresses.items()
    }


def node_resources(selects: Callable[[Mapping[str, str]], bool] = lambda labels: True) -> dict[str, dict[str, float]]:
    """Returns the logical resources of each living node selected by its labels, by id."""
    living = (node for node in ray.nodes() if node["Alive"])
    return {node["NodeID"]: node["Resources"] for node in living if selects(node.get("Labels", {}))}


def free_resources() -> dict[str, dict[str, float]]:
    """Returns the free logical resources of each living node, by id. Ray has no public call for this."""
    free: dict[str, dict[str, float]] = state.available_resources_per_node()
    return free


def request_resource_reports(nodes: Iterable[str]) -> None:
    """Makes nodes report their free resources to the control store, and does not wait for the reports.

    A node reports only changes, so an empty task allocates and releases a little memory on each.
    """
    task: Any = ray.remote(num_cpus=0, memory=2**20, max_retries=0)(lambda: None)
    for node in nodes:
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()


def lasting_resources(every: Mapping[str, dict[str, float]], leaving: Set[str]) -> list[dict[str, float]]:
    """Returns the resources of each node that is not leaving, and in a last entry those that an autoscaler can add."""
    nodes = [each for node, each in every.items() if node not in leaving]
    limits = read_growth(os.environ.get(GROWTH_VARIABLE, "")).items()
    return [*nodes, {name: limit - sum(node.get(name, 0.0) for node in nodes) for name, limit in limits}]


def draining_nodes() -> set[str]:
    """Returns the ids of the nodes that are being drained. Ray has no public call for this."""
    return set(state.get_draining_nodes())


def lost_nodes(before: set[str], *, wait_s: float) -> int:
    """Returns how many of the nodes in `before` are lost; waits for the cluster to notice a node that does not respond.

    A node that does not respond counts as dead after five checks, 3 s apart, each with a timeout of 10 s (Ray's
    health_check_failure_threshold, _period_ms and _timeout_ms).
    """
    end, responses = time.monotonic() + (wait_s if before else 0.0), 0
    # A node that is about to end may still respond.
    while before <= living_nodes() and responses < NODE_PROBES and time.monotonic() < end:
        try:
            for node in ray.nodes():
                if node["NodeID"] in before:
                    raylet = node["NodeManagerAddress"], node["NodeManagerPort"]
                    socket.create_connection(raylet, timeout=NODE_PROBE_S).close()
            responses += 1
        except OSError:
            responses = 0
        time.sleep(NODE_PROBE_S)
    return len(before - living_nodes())
