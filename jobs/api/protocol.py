"""The protocol of service and client, besides the records of jobs.model: format of errors, paths, headers, limits.

Every error has this format:

    {"error": {"type": "NotFoundError", "message": "no run is named whisper-sr: …", "exit_code": 21}}
"""

from collections.abc import Iterator

from jobs.errors import AuthError, ClusterError, ConflictError, JobsError, NotFoundError, PreflightError, ServiceError
from jobs.model import Record
from trainers.errors import ConfigError, RayscribeError, ResourceError, StorageError

IDEMPOTENCY_KEY = "Idempotency-Key"
REQUEST_ID = "X-Request-Id"
RUNS, PACKAGES, CLUSTERS = "/v1/runs", "/v1/packages", "/v1/clusters"
USAGE, QUEUES = "/v1/usage", "/v1/queues"
HEALTH, METRICS, OPENAPI = "/healthz", "/metrics", "/openapi.json"
# The pages for people, and the path that redirects to them.
UI, ROOT = "/ui", "/"

MAX_RUNS = 500
MAX_EVENTS = 1000
# The config of a run, its overrides and names; recipes are a few thousand bytes.
MAX_JSON_BYTES = 1_000_000
# The offsets of all workers' logs, in base64; they are part of the URL, which uvicorn limits to 64 KiB.
MAX_CURSOR = 32_000


class TooLargeError(ConfigError):
    """A request body is larger than the limit."""


class TooSlowError(ServiceError):
    """A request body did not arrive in time."""


class FullDiskError(ServiceError):
    """A disk of the service, or of its database, is full."""

    for_clients = (
        "the disk of the service is full: inform the service's administrator, who can free space or choose another "
        "folder for packages (RAYSCRIBE_HOME) or database; then repeat the request"
    )


# The first class in the error's MRO decides. 422: the request is not valid, so a retry would fail too. 502: the cluster
# or the run's storage does not respond. 503: the service, or its database, does not.
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
    FullDiskError: 507,
    AuthError: 401,
}
# Errors of other modules are internal; they are sent as their nearest base class from these modules.
_PUBLIC = (JobsError.__module__, RayscribeError.__module__)


class ErrorDetail(Record):
    """An error: its name for programs, a message for people, and the exit code of `rayscribe`."""

    type: str
    message: str
    exit_code: int


class ErrorBody(Record):
    """The body of every response that is an error."""

    error: ErrorDetail

    @classmethod
    def from_error(cls, error: RayscribeError) -> "ErrorBody":
        kind = next(each for each in type(error).__mro__ if each.__module__ in _PUBLIC)
        return cls(error=ErrorDetail(type=kind.__name__, message=str(error), exit_code=error.exit_code))

    def to_error(self) -> RayscribeError:
        """Converts the body back to the error; an unknown error becomes a JobsError with its message and exit code."""
        known = {each.__name__: each for each in _subclasses(RayscribeError)}
        error = known.get(self.error.type, JobsError)(self.error.message)
        error.exit_code = self.error.exit_code
        return error


def status_of(error: RayscribeError) -> int:
    """Returns the HTTP status of the response to an error."""
    return next(STATUS[each] for each in type(error).__mro__ if each in STATUS)


def _subclasses(root: type[RayscribeError]) -> Iterator[type[RayscribeError]]:
    yield root
    for child in root.__subclasses__():
        yield from _subclasses(child)
