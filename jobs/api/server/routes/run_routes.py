"""/v1/runs: submit, list, get, stop, resume, logs."""

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from jobs.api.protocol import IDEMPOTENCY_KEY, MAX_CURSOR, MAX_EVENTS, MAX_RUNS, RUNS
from jobs.api.server.dependencies import ServiceDep, in_threads
from jobs.errors import NotFoundError
from jobs.model import Attempt, Event, LogPage, Page, Run, RunFilter, RunState
from jobs.submission.run_request import RunRequest
from trainers.config.parts.run_part import NAME
from trainers.config.strict_loading import load_json
from trainers.errors import ConfigError


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return load_json(body.decode(json.detect_encoding(body)))
        except json.JSONDecodeError:
            raise  # FastAPI reports the position
        except UnicodeDecodeError:
            raise HTTPException(400, "the body is not text in UTF-8") from None
        except ValueError as error:
            raise HTTPException(422, f"the body is not valid JSON: {str(error)[:200]}") from None


class StrictJsonRoute(APIRoute):
    """A route whose requests' JSON is parsed strictly, see `load_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


router = APIRouter(prefix=RUNS, tags=["runs"], route_class=StrictJsonRoute)

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
# Cursors are URL-safe base64.
CURSOR = r"^[A-Za-z0-9_=-]+$"
MAX_NAME = 200
# Largest number of an attempt and of an event, within the range of every database.
MAX_ATTEMPT, MAX_NUMBER = 1_000_000, 2**53
# NUL, and unpaired surrogates.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
# A config has at most four levels.
MAX_DEPTH = 50
RUN_REQUEST = {
    "config": {
        "run": {"name": "whisper-sr", "storage_path": "s3://speech/runs"},
        "data": {"train": "s3://speech/sr/train.csv", "validation": "s3://speech/sr/validation.csv"},
        "model": {"name_or_path": "openai/whisper-small", "language": "Serbian"},
        "training": {"max_steps": 4000},
        "scaling": {"num_workers": 2, "use_gpu": True, "resources_per_worker": {"CPU": 4, "GPU": 1}},
        "job": {"priority": 10, "tags": ["serbian"]},
    },
    "package": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}


class QueryString(BaseModel):
    """A query string; unknown parameters are rejected, so that a mistyped filter does not list everything."""

    model_config = ConfigDict(extra="forbid")


Filter = Annotated[str | None, Field(pattern=PRINTABLE, max_length=MAX_NAME)]


class RunsQuery(QueryString):
    """Filters and paging of runs."""

    state: list[RunState] = Field([], max_length=50, description="Only runs in this state; may be repeated.")
    queue: Filter = Field(None, description="Only runs of this queue.")
    user: Filter = Field(None, description="Only runs of this user.")
    tag: Filter = Field(None, description="Only runs with this tag.")
    limit: int = Field(50, ge=1, le=MAX_RUNS, description="Largest number of runs.")
    cursor: str | None = Field(None, pattern=CURSOR, max_length=1000, description="`next_cursor` of the previous page.")


class EventsQuery(QueryString):
    """Paging of events."""

    after: int = Field(0, ge=0, le=MAX_NUMBER, description="Only events with a larger number.")
    limit: int = Field(MAX_EVENTS, ge=1, le=MAX_EVENTS, description="Largest number of events.")


class LogsQuery(QueryString):
    """Selection and paging of logs."""

    attempt: int | None = Field(None, ge=1, le=MAX_ATTEMPT, description="Number of the attempt. Default: the newest.")
    source: str | None = Field(
        None, pattern=PRINTABLE, max_length=MAX_NAME, description="`driver` or `rank-<n>`. Default: all."
    )
    cursor: str | None = Field(
        None,
        pattern=CURSOR,
        max_length=MAX_CURSOR,
        description="`cursor` of the previous page. Default: start at the first line.",
    )


async def valid_run_id(
    run_id: Annotated[
        str,
        Path(description="Name of the run.", examples=["whisper-sr"], json_schema_extra={"pattern": NAME}),
    ],
) -> str:
    """Returns the name of a run; raises NotFoundError for a text that cannot be one."""
    if len(run_id) > MAX_NAME or not run_id.isprintable():
        raise NotFoundError("no run has such a name: letters, digits, '.', '_' and '-', 100 at most")
    return run_id


RunId = Annotated[str, Depends(valid_run_id)]
Key = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_KEY,
        pattern=r"^[!-~]+$",
        max_length=MAX_NAME,
        description="Chosen by the client, a new one for each new run. A repeated request with the same key returns "
        "the existing run, so that a request whose response was lost can be repeated.",
    ),
]


@router.post(
    "",
    status_code=201,
    summary="Submit a run",
    response_description="The run, queued; the header Location has its path.",
    openapi_extra={"requestBody": {"content": {"application/json": {"example": RUN_REQUEST}}}},
)
def submit_run(run_request: RunRequest, service: ServiceDep, response: Response, key: Key = None) -> Run:
    """Queues a run of an uploaded package (see `PUT /v1/packages/{sha256}`) for the token's user.

    The config is validated; one response lists all its errors. A gang that can never fit on the cluster is rejected.
    """
    _reject_unstorable(run_request.config)
    run = service.submit(run_request, idempotency_key=key)
    response.headers["Location"] = f"{RUNS}/{run.id}"
    return run


@router.get("", summary="List runs", response_model=Page)
@in_threads("lists")
def list_runs(request: Request, query: Annotated[RunsQuery, Query()], service: ServiceDep) -> Response:
    """Lists the runs of all users, newest first. `next_cursor` is for the next page; null if there is none.

    A page with large configs may have fewer runs than its limit.
    """
    wanted = RunFilter(query.state, query.queue, query.user, query.tag)
    return json_response(service.runs(wanted, limit=query.limit, cursor=query.cursor))


@router.get("/{run_id}", summary="Get a run")
def get_run(run_id: RunId, service: ServiceDep) -> Run:
    """Returns a run with its state, the reason for it, and the progress of its newest attempt."""
    return service.run(run_id)


@router.get("/{run_id}/attempts", summary="List a run's attempts")
def list_attempts(run_id: RunId, service: ServiceDep) -> list[Attempt]:
    """Lists the attempts of a run: the checkpoint that each started from, its resources, and how it ended."""
    return service.attempts(run_id)


@router.get("/{run_id}/events", summary="List a run's events")
def list_events(run_id: RunId, query: Annotated[EventsQuery, Query()], service: ServiceDep) -> list[Event]:
    """Lists a run's changes of state. For the next page, pass the last number as `after`."""
    return service.events(run_id, after=query.after, limit=query.limit)


@router.post("/{run_id}/stop", summary="Stop a run")
def stop_run(run_id: RunId, service: ServiceDep) -> Run:
    """Requests a stop: a waiting run stops at once, a run that is training saves a last checkpoint first.

    A repeated request, or one for a run that has ended, changes nothing. The event records the user.
    """
    return service.stop(run_id)


@router.post("/{run_id}/resume", summary="Resume a run")
def resume_run(run_id: RunId, service: ServiceDep) -> Run:
    """Queues a failed or stopped run again; it continues from its last complete checkpoint.

    The event records the user. A repeated request is rejected, since the run is already queued.
    """
    return service.resume(run_id)


@router.get("/{run_id}/logs", summary="Read an attempt's logs", response_model=LogPage)
@in_threads("logs")
def read_run_logs(
    request: Request, run_id: RunId, query: Annotated[LogsQuery, Query()], service: ServiceDep
) -> Response:
    """Returns the output of driver and workers since the cursor, even if the cluster has ended.

    If `ended` is true, there are no more lines; if not, repeat the request with `cursor`. No line is lost or repeated.
    """
    return json_response(service.logs(run_id, attempt=query.attempt, source=query.source, cursor=query.cursor))


def json_response(page: Page | LogPage) -> Response:
    """Builds a response that may be large, in the current thread instead of the event loop's."""
    return Response(page.model_dump_json(), media_type="application/json")


def _reject_unstorable(value: Any, depth: int = 0) -> None:
    """Raises ConfigError for values that JSON allows but file names, databases or responses do not."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"the submission has more than {MAX_DEPTH} levels; a config has four")
    match value:
        case str() if _UNSTORABLE.search(value):
            raise ConfigError("the submission has a NUL, or half of a surrogate pair, in a text: remove it")
        case float() if not math.isfinite(value):
            raise ConfigError("the submission has a number that is not finite: JSON has no NaN and no infinity")
        case dict():
            for name, item in value.items():
                _reject_unstorable(name, depth + 1)
                _reject_unstorable(item, depth + 1)
        case list():
            for item in value:
                _reject_unstorable(item, depth + 1)
