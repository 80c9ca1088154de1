"""Examples and error responses for the OpenAPI description."""

from typing import Any

from jobs.api.protocol import ErrorBody
from jobs.errors import AuthError, ClusterError, ConflictError, NotFoundError, ServiceError
from jobs.model import Attempt, AttemptState, Gang, Progress, Run, RunState
from trainers.errors import ConfigError, RayscribeError

CONFIG: dict[str, Any] = {
    "run": {"name": "whisper-sr", "storage_path": "s3://speech/runs"},
    "data": {"train": "s3://speech/sr/train.csv", "validation": "s3://speech/sr/validation.csv"},
    "model": {"name_or_path": "openai/whisper-small", "language": "Serbian"},
    "training": {"max_steps": 4000},
    "scaling": {"num_workers": 2, "use_gpu": True, "resources_per_worker": {"CPU": 4, "GPU": 1}},
    "job": {"priority": 10, "tags": ["serbian"]},
}
GANG = Gang(num_workers=2, resources_per_worker={"CPU": 4.0, "GPU": 1.0}, extra={"CPU": 1.0})
RUN = Run(
    id="whisper-sr",
    uid="5d1c7a0e4a4b4e0c9a3b5b2f0d7c8e91",
    user="ana",
    queue="default",
    priority=10,
    address="http://ray-head:8265",
    config=CONFIG,
    package="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    gang=GANG,
    tags=["serbian"],
    depends_on=[],
    max_retries=3,
    run_folder="s3://speech/runs/whisper-sr",
    state=RunState.TRAINING,
    reason="step 1200/4000 · loss 0.2310 · ETA 1 h 12 min",
    attempt=1,
    submitted_s=1767225600.0,
    queued_s=1767225600.0,
    updated_s=1767229200.0,
    progress=Progress(phase="TRAINING", step=1200, max_steps=4000, loss=0.231, eta_s=4320.0, at_s=1767229199.0),
    version=31,
).model_dump(mode="json")
ATTEMPT = Attempt(
    run_id="whisper-sr",
    number=1,
    submission_id="whisper-sr-a1",
    state=AttemptState.SUBMITTED,
    gang=GANG,
    created_s=1767225601.0,
    submitted_s=1767225603.0,
).model_dump(mode="json")
EVENT: dict[str, Any] = {
    "number": 812,
    "run_id": "whisper-sr",
    "attempt": 1,
    "at_s": 1767225601.0,
    "state": "SETTING_UP",
    "before": "QUEUED",
    "cause": "admitted",
    "text": "attempt 1 starts from scratch",
}
PAGE = {"runs": [RUN], "next_cursor": "WzE3NjcyMjU2MDAuMCwgIndoaXNwZXItc3IiXQ"}
LOGS = {
    "attempt": 1,
    "lines": [{"source": "driver", "text": "step 1,200 of 4,000"}, {"source": "rank-0", "text": "loss 0.231"}],
    "cursor": "eyJkcml2ZXIiOiA1MTJ9",
    "ended": False,
}
USAGE = {"key": "ana", "attempts": 12, "wall_hours": 31.5, "cpu_hours": 283.5, "gpu_hours": 63.0}
RUN_REQUEST = {name: RUN[name] for name in ("config", "package")}

ERRORS: dict[int, tuple[str, RayscribeError]] = {
    400: ("The body cannot be parsed.", ConfigError("There was an error parsing the body")),
    401: ("The token is missing or unknown.", AuthError("no token: send `Authorization: Bearer rsk_…`")),
    403: ("Without tokens: the request is not from this machine.", AuthError("the request comes from a page of …")),
    404: ("Not found.", NotFoundError("no run is named whisper-sr: did you mean whisper-hr?")),
    408: ("The body did not arrive in time.", ServiceError("the request's body did not arrive within 30 s")),
    409: ("The request conflicts with the current state.", ConflictError("run whisper-sr is TRAINING; only …")),
    413: ("The body is too large.", ConfigError("the request's body is larger than 1000000 bytes")),
    422: ("The request is not valid.", ConfigError("query.limit: Input should be less than or equal to 500")),
    500: ("Internal error; the service's log has the traceback.", ServiceError("internal error; the service's log …")),
    502: ("A Ray cluster, or the storage of a run, does not respond.", ClusterError("http://ray-head:8265: …")),
    503: ("The ledger's database does not respond.", ServiceError("the ledger … does not respond")),
    507: ("A disk of the service is full.", ServiceError("the disk of the service is full: …")),
}
ALWAYS = (401, 403, 500, 503)


def example(value: Any, description: str) -> dict[str, Any]:
    """Describes a response, with an example."""
    return {"description": description, "content": {"application/json": {"example": value}}}


def ok(value: Any, description: str, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describes the response of status 200, and the errors of `statuses` and those of any endpoint."""
    return {200: example(value, description), **errors(*statuses)}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describes these errors, and those with which any endpoint may respond."""
    described: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, *ALWAYS}):
        description, error = ERRORS[status]
        described[status] = {"model": ErrorBody, **example(ErrorBody.from_error(error).model_dump(), description)}
    return described
