"""/v1/runs: submit, look, stop, resume, logs."""

import math
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from jobs.api.protocol import IDEMPOTENCY_KEY, MOST_CURSOR, MOST_EVENTS, MOST_RUNS, RUNS
from jobs.api.server import openapi
from jobs.api.server.dependencies import Asked
from jobs.errors import NotFoundError
from jobs.lifecycle import RunState
from jobs.model import Attempt, Event, LogPage, Page, Run, RunFilter
from jobs.submission.run_request import RunRequest
from trainers.config.schema import NAME
from trainers.errors import ConfigError

router = APIRouter(prefix=RUNS, tags=["runs"])

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
# What a page hands out is base64 for URLs.
CURSOR = r"^[A-Za-z0-9_=-]+$"
MOST_NAME = 200
# Of an attempt's and of an event's number, so that every database takes it.
MOST_ATTEMPT, MOST_NUMBER = 1_000_000, 2**53
# A config has three levels or four.
MOST_DEPTH = 50


class QueryString(BaseModel):
    """A query string; names that are not in it are refused, so that a mistyped filter does not list everything."""

    model_config = ConfigDict(extra="forbid")


Filter = Annotated[str | None, Field(pattern=PRINTABLE, max_length=MOST_NAME)]


class RunsQuery(QueryString):
    """Which runs are listed."""

    state: list[RunState] = Field([], max_length=50, description="Only runs in this state; may be repeated.")
    queue: Filter = Field(None, description="Only runs of this queue.")
    user: Filter = Field(None, description="Only runs of this user.")
    tag: Filter = Field(None, description="Only runs with this tag.")
    limit: int = Field(50, ge=1, le=MOST_RUNS, description="At most so many runs.")
    cursor: str | None = Field(
        None, pattern=CURSOR, max_length=1000, description="`next_cursor` of the page before; nothing else is a cursor."
    )


class EventsQuery(QueryString):
    """Which events are listed."""

    after: int = Field(0, ge=0, le=MOST_NUMBER, description="Only events with a larger number.")
    limit: int = Field(MOST_EVENTS, ge=1, le=MOST_EVENTS, description="At most so many events.")


class LogsQuery(QueryString):
    """Which logs are read."""

    attempt: int | None = Field(None, ge=1, le=MOST_ATTEMPT, description="Number of the attempt. Default: the newest.")
    source: str | None = Field(
        None, pattern=PRINTABLE, max_length=MOST_NAME, description="`driver` or `rank-<n>`. Default: all."
    )
    cursor: str | None = Field(
        None,
        pattern=CURSOR,
        max_length=MOST_CURSOR,
        description="`cursor` of the page before. Default: from the beginning.",
    )


def known_name(
    run_id: Annotated[
        str,
        Path(description="Name of the run.", examples=["whisper-sr"], json_schema_extra={"pattern": NAME}),
    ],
) -> str:
    """A text that may be the name of a run; what cannot be one is not there, as any other that is not."""
    if len(run_id) > MOST_NAME or not run_id.isprintable():
        raise NotFoundError("no run has such a name: letters, digits, '.', '_' and '-', 100 at most")
    return run_id


RunId = Annotated[str, Depends(known_name)]
Key = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_KEY,
        pattern=r"^[!-~]+$",
        max_length=MOST_NAME,
        description="Made up by the client, new for each new run. Sent again with the same request, it gives the run "
        "that is there already, so that a request whose answer was lost can be repeated.",
    ),
]


@router.post(
    "",
    status_code=201,
    summary="Submit a run",
    responses={
        201: {
            **openapi.example(openapi.RUN, "The run, queued."),
            "headers": {"Location": {"schema": {"type": "string"}, "description": "Path of the run."}},
        },
        **openapi.errors(400, 404, 408, 409, 413, 422),
    },
    openapi_extra={"requestBody": {"content": {"application/json": {"example": openapi.RUN_REQUEST}}}},
)
def submit_run(run_request: RunRequest, asked: Asked, response: Response, key: Key = None) -> Run:
    """Queues a run of an uploaded package (see `PUT /v1/packages/{sha256}`). Its user is the one of the token.

    The config is checked whole; one answer names every fault. A gang that can never fit is refused with the arithmetic.
    """
    _refuse_unspeakable(run_request.config)
    run = asked.submit(run_request, idempotency_key=key)
    response.headers["Location"] = f"{RUNS}/{run.id}"
    return run


@router.get(
    "",
    summary="List runs",
    responses={200: openapi.example(openapi.PAGE, "A page."), **openapi.errors(422)},
)
def list_runs(query: Annotated[RunsQuery, Query()], asked: Asked) -> Page:
    """Lists the runs of all users, newest submitted first. `next_cursor` gives the next page; null: there is none."""
    wanted = RunFilter(query.state, query.queue, query.user, query.tag)
    return asked.runs(wanted, limit=query.limit, cursor=query.cursor)


@router.get(
    "/{run_id}",
    summary="Look at a run",
    responses={200: openapi.example(openapi.RUN, "The run."), **openapi.errors(404, 422)},
)
def get_run(run_id: RunId, asked: Asked) -> Run:
    """Gives a run with its state, one line of reason, and how far its newest attempt has come."""
    return asked.run(run_id)


@router.get(
    "/{run_id}/attempts",
    summary="List a run's attempts",
    responses={200: openapi.example([openapi.ATTEMPT], "All attempts, oldest first."), **openapi.errors(404, 422)},
)
def list_attempts(run_id: RunId, asked: Asked) -> list[Attempt]:
    """Lists the Ray jobs of a run: what each started from, held, and ended with."""
    return asked.attempts(run_id)


@router.get(
    "/{run_id}/events",
    summary="List a run's events",
    responses={200: openapi.example([openapi.EVENT], "Events, oldest first."), **openapi.errors(404, 422)},
)
def list_events(run_id: RunId, query: Annotated[EventsQuery, Query()], asked: Asked) -> list[Event]:
    """Tells the run's story. For the next page send the last number as `after`; an empty list: nothing more yet."""
    return asked.events(run_id, after=query.after, limit=query.limit)


@router.post(
    "/{run_id}/stop",
    summary="Stop a run",
    responses={200: openapi.example(openapi.RUN, "The run as it is now."), **openapi.errors(404, 422)},
)
def stop_run(run_id: RunId, asked: Asked) -> Run:
    """Asks for a run's end: a waiting one stops at once, one that trains leaves a last checkpoint first.

    Asking again, or of a run that has ended, changes nothing. Any token may stop any run; the event says whose did.
    """
    return asked.stop(run_id)


@router.post(
    "/{run_id}/resume",
    summary="Resume a run",
    responses={200: openapi.example(openapi.RUN, "The run, queued again."), **openapi.errors(404, 409, 422)},
)
def resume_run(run_id: RunId, asked: Asked) -> Run:
    """Queues a failed or stopped run again; it continues from its last whole checkpoint.

    Any token may resume any run; the event says whose did. Repeated, it is refused, since the run is queued already.
    """
    return asked.resume(run_id)


@router.get(
    "/{run_id}/logs",
    summary="Read an attempt's logs",
    responses={200: openapi.example(openapi.LOGS, "What is new."), **openapi.errors(404, 409, 422, 502)},
)
def read_run_logs(run_id: RunId, query: Annotated[LogsQuery, Query()], asked: Asked) -> LogPage:
    """Gives what driver and workers printed since the cursor: live, and after the cluster has gone.

    `ended`: nothing more will come. Otherwise ask again with `cursor`; over any reconnect nothing is lost or repeated.
    """
    return asked.logs(run_id, attempt=query.attempt, source=query.source, cursor=query.cursor)


def _refuse_unspeakable(value: Any, depth: int = 0) -> None:
    """Refuses what JSON can carry but no file name, database or answer can.

    Raises:
        ConfigError: half of a surrogate pair or a NUL in a text, NaN or an infinity, or too many levels.
    """
    if depth > MOST_DEPTH:
        raise ConfigError(f"the submission has more than {MOST_DEPTH} levels: a config has four")
    match value:
        case str() if "\x00" in value or (not value.isascii() and _is_torn(value)):
            raise ConfigError("the submission has a NUL, or half of a surrogate pair, in a text: take it out")
        case float() if not math.isfinite(value):
            raise ConfigError("the submission has a number that is not finite: JSON has no NaN and no infinity")
        case dict():
            for name, item in value.items():
                _refuse_unspeakable(name, depth + 1)
                _refuse_unspeakable(item, depth + 1)
        case list():
            for item in value:
                _refuse_unspeakable(item, depth + 1)


def _is_torn(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
