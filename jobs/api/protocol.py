"""What service and client say to each other beside the records of jobs.model: the shape of errors, names, limits.

One shape for every error, whoever raised it, so that a client has one thing to understand:

    {"error": {"type": "NotFoundError", "message": "no run is named whisper-sr: …", "exit_code": 21}}
"""

from collections.abc import Iterator

from jobs.errors import (
    AuthError,
    ClusterError,
    ConflictError,
    JobsError,
    NotFoundError,
    PreflightError,
    ServiceError,
)
from jobs.model import Record
from trainers.errors import ConfigError, RayscribeError, ResourceError, StorageError

IDEMPOTENCY_KEY = "Idempotency-Key"
REQUEST_ID = "X-Request-Id"
RUNS, PACKAGES, CLUSTERS = "/v1/runs", "/v1/packages", "/v1/clusters"
USAGE, QUEUES = "/v1/usage", "/v1/queues"
HEALTH, METRICS, OPENAPI = "/healthz", "/metrics", "/openapi.json"

MOST_RUNS = 500
MOST_EVENTS = 1000
# The config of a run, its overrides and names; recipes are a few thousand bytes.
MOST_JSON_BYTES = 1_000_000
# An offset for every worker's log, in base64; a cursor travels in the URL, of which uvicorn takes 64 KiB.
MOST_CURSOR = 32_000


class TooLargeError(ConfigError):
    """A body is larger than the service takes."""


class TooSlowError(ServiceError):
    """A body did not come in time."""


# The nearest class in the error's own line of ancestors decides. 422: the request itself cannot be; sent again, it
# would be refused again. 502: it is the cluster, or the run's storage, that does not answer. 503: it is we.
STATUS: dict[type[RayscribeError], int] = {
    RayscribeError: 500,
    ConfigError: 422,
    TooLargeError: 413,
    ResourceError: 422,
    PreflightError: 422,
    StorageError: 502,
    JobsError: 500,
    NotFoundError: 404,
    ConflictError: 409,
    ClusterError: 502,
    ServiceError: 503,
    TooSlowError: 408,
    AuthError: 401,
}
# Errors of other modules are those modules' own business; they travel as the nearest of these.
_PUBLIC = ("jobs.errors", "trainers.errors")


class ErrorDetail(Record):
    """What went wrong.

    Attributes:
        type: Name of the error, for a program: ConfigError, NotFoundError, ConflictError, …
        message: For a person; names the thing, the value and the fix.
        exit_code: What `rayscribe` ends with for this error.
    """

    type: str
    message: str
    exit_code: int


class ErrorBody(Record):
    """The body of every answer that is not the one asked for."""

    error: ErrorDetail

    @classmethod
    def of(cls, error: RayscribeError) -> "ErrorBody":
        """The error as it travels."""
        kind = next(each for each in type(error).__mro__ if each.__module__ in _PUBLIC)
        return cls(error=ErrorDetail(type=kind.__name__, message=str(error), exit_code=error.exit_code))

    def rebuilt(self) -> RayscribeError:
        """The error as it was raised; one that this version does not know keeps message and exit code."""
        known = {each.__name__: each for each in _tree(RayscribeError)}
        made = known.get(self.error.type, JobsError)(self.error.message)
        made.exit_code = self.error.exit_code
        return made


def status_of(error: RayscribeError) -> int:
    """The HTTP status that an error is answered with."""
    return next(STATUS[each] for each in type(error).__mro__ if each in STATUS)


def _tree(root: type[RayscribeError]) -> Iterator[type[RayscribeError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)
