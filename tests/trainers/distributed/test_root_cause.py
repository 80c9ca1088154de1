"""Errors of Ray's own classes, in the shapes in which Ray Train 2.60 raised them when each was made for real."""

import pickle
from pickle import PicklingError

import pytest
import torch
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, OutOfMemoryError, RayTaskError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from trainers.distributed.root_cause import (
    TooManyFailuresError,
    converting_errors,
    is_preemption,
    only_connection_errors,
    root_cause_of,
)
from trainers.errors import (
    ConfigError,
    DataError,
    FencedError,
    LostNodeError,
    LostWorkerError,
    MemoryExhaustedError,
    PackageError,
    ProgramError,
    RayscribeError,
    ResourceError,
    StorageError,
)

CLOSED = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:28874. Check the logs of the remote worker")
HUNG = RuntimeError("[transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete")
AWAY = "When initiating multiple part upload for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION: curlCode: 28"
MONITOR = "5 worker(s) were killed due to the node running low on memory. Memory on the node was 3.1GB used\nOOM kill"


def died(end: str, *, preempted: bool = False) -> ActorDiedError:
    """What a call to a dead actor raises; Ray appends its reason as the last line."""
    error = ActorDiedError()
    error.error_msg = f"The actor died unexpectedly before finishing this task.\n\tclass_name: RayTrainWorker\n{end}"
    error._preempted = preempted
    return error


KILLED = died(
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
    "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the "
    "process was killed by the OOM killer due to high memory usage"
)
NODE_GONE = died(
    "The actor died because its node has died. Node Id: b6f1\n\tthe actor's node was terminated expectedly"
)
UNBORN = WorkerGroupStartupFailedError("At least one of the worker actors failed to initialize.")
UNAVAILABLE = ActorUnavailableError("The actor is temporarily unavailable: RpcError: Socket closed", b"0" * 16)


def group(*errors: Exception) -> WorkerGroupError:
    """What fit() raises for errors of ranks 0, 1, …"""
    return WorkerGroupError("[Rank 0 Error Snippet]: …", dict(enumerate(errors)))


def unhealthy(error: Exception) -> WorkerHealthCheckFailedError:
    """How Ray Train wraps what a call to a worker raised."""
    return WorkerHealthCheckFailedError("A worker health check failed.\nWorker info: Worker(…)", error)


def in_loader(kind: str, text: str) -> str:
    """The text that torch gives an error of a process that reads."""
    module = "" if kind == "TypeError" else "trainers.errors."
    frames = 'Original Traceback (most recent call last):\n  File "worker.py", line 349, in _worker_loop'
    return f"Caught {kind} in DataLoader worker process 0.\n{frames}\n{module}{kind}: {text}\n"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            group(CLOSED, unhealthy(KILLED)),
            LostWorkerError,
            "with a connection error code 2. End of file. If it was not killed",
        ),
        (group(unhealthy(KILLED)), LostWorkerError, "may have run out of memory"),
        (ControllerError(UNBORN), LostWorkerError, "failed to initialize"),
        (group(CLOSED), LostWorkerError, "Connection closed by peer"),
        (group(HUNG), LostWorkerError, "Timed out waiting 1800000ms"),
        (group(unhealthy(UNAVAILABLE), CLOSED), LostWorkerError, "temporarily unavailable"),
        (group(CLOSED, unhealthy(NODE_GONE)), LostNodeError, "was terminated expectedly"),
        (group(unhealthy(died("gone", preempted=True))), LostNodeError, "gone"),
        (ControllerError(NodeDiedError("node 7 is dead")), LostNodeError, "node 7 is dead"),
        (
            group(unhealthy(OutOfMemoryError(MONITOR)), CLOSED),
            MemoryExhaustedError,
            "was 3.1GB used; lower training.per",
        ),
        (OutOfMemoryError(MONITOR), MemoryExhaustedError, "running low on memory"),
        (group(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")), MemoryExhaustedError, "2 GiB"),
        (
            group(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")),
            MemoryExhaustedError,
            "gradient_accumulation_steps",
        ),
        (group(CLOSED, ConfigError("training.x is 1")), ConfigError, "training.x is 1"),
        (ControllerError(FencedError("attempt 3 has it")), FencedError, "attempt 3 has it"),
        (RayTaskError("f", "Traceback…", StorageError("no bucket")), StorageError, "no bucket"),
        (
            ControllerError(RayTaskError("f", "Traceback…", ResourceError("no GPU")).as_instanceof_cause()),
            ResourceError,
            "no GPU",
        ),
        (ControllerError(OSError(f"{AWAY}: Timeout was reached")), StorageError, "the storage failed: When initiating"),
        (group(ValueError("bad 7"), CLOSED), ProgramError, "training failed: ValueError: bad 7"),
        (
            group(ModuleNotFoundError("No module named 'triton'"), CLOSED),
            PackageError,
            "No module named 'triton'; install",
        ),
        (group(ImportError("cannot import name 'a' from 'b'")), PackageError, "training: ImportError: cannot import"),
        (
            group(PicklingError("Can't pickle it"), CLOSED),
            ProgramError,
            "training failed: PicklingError: Can't pickle it",
        ),
        (group(SyntaxError("invalid syntax")), ProgramError, "training failed: SyntaxError: invalid syntax"),
        (group(UnboundLocalError("no value")), ProgramError, "training failed: UnboundLocalError: no value"),
        (group(TypeError(in_loader("TypeError", "no 7")), CLOSED), ProgramError, "training failed: TypeError: no 7"),
        (group(RuntimeError("who knows"), CLOSED), RayscribeError, "training failed: RuntimeError: who knows"),
        (group(UnicodeError("a subclass")), RayscribeError, "training failed: UnicodeError: a subclass"),
    ],
)
def test_each_cause_is_recognized(error: Exception, kind: type[RayscribeError], words: str) -> None:
    for item in (error, pickle.loads(pickle.dumps(error)) if isinstance(error, WorkerGroupError) else error):
        found = root_cause_of(item)
        assert type(found) is kind, found
        assert words in str(found)
        assert "Some common causes" not in str(found)


def test_an_error_of_a_process_that_reads_has_its_own_text() -> None:
    error = root_cause_of(group(DataError(in_loader("DataError", "noise.csv: gone;\nfix it")), CLOSED))
    assert type(error) is DataError
    assert str(error) == "noise.csv: gone;\nfix it"


def test_a_worker_that_went_with_its_node_is_a_lost_node() -> None:
    for error in (group(unhealthy(UNAVAILABLE)), group(CLOSED), group(CLOSED, unhealthy(KILLED))):
        assert type(root_cause_of(error, lost_nodes=1)) is LostNodeError
    assert type(root_cause_of(ControllerError(UNBORN), lost_nodes=1)) is LostNodeError
    assert type(root_cause_of(group(ValueError("bad 7")), lost_nodes=1)) is ProgramError


def test_workers_without_room_after_a_lost_node_are_a_lost_node() -> None:
    error = ControllerError(WorkerGroupStartupTimeoutError(3))
    assert type(root_cause_of(error, lost_nodes=1)) is LostNodeError
    assert type(root_cause_of(error)) is RayscribeError


def test_failing_too_often_has_the_causes_of_the_last_failure() -> None:
    error = ControllerError(TooManyFailuresError({0: CLOSED, 1: unhealthy(KILLED)}))
    for item in (error, ControllerError(pickle.loads(pickle.dumps(error.controller_failure)))):
        assert type(root_cause_of(item)) is LostWorkerError
        assert type(root_cause_of(item, lost_nodes=1)) is LostNodeError


def test_only_connection_errors_are_worth_waiting_for() -> None:
    assert only_connection_errors(group(unhealthy(UNAVAILABLE), CLOSED))
    for error in (group(CLOSED, unhealthy(KILLED)), group(ValueError("bad 7"), CLOSED), group(unhealthy(NODE_GONE))):
        assert not only_connection_errors(error)


def test_without_ray_errors_of_memory_and_imports_are_converted() -> None:
    with pytest.raises(MemoryExhaustedError, match="gradient_checkpointing"), converting_errors():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(PackageError, match="No module named 'wandb'"), converting_errors():
        raise ModuleNotFoundError("No module named 'wandb'")
    with pytest.raises(RuntimeError, match="shape"), converting_errors():
        raise RuntimeError("shape mismatch")


def test_only_a_preempted_node_is_a_preemption() -> None:
    assert is_preemption(group(CLOSED, unhealthy(died("gone", preempted=True))))
    assert not is_preemption(group(unhealthy(NODE_GONE)))


def test_the_exit_codes_are_those_that_a_service_reads() -> None:
    kinds = (LostWorkerError, MemoryExhaustedError, FencedError, LostNodeError)
    assert [kind.exit_code for kind in kinds] == [8, 9, 10, 11]
    assert [kind.final for kind in kinds] == [False, False, True, False]
