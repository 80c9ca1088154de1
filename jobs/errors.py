"""The errors of client and service, subclasses of RayscribeError; those in trainers.errors have smaller exit codes."""

import difflib
from collections.abc import Sequence

from trainers.errors import RayscribeError


class JobsError(RayscribeError):
    """Base of the errors of client and service; no training ends with their exit codes."""

    exit_code = 20


class NotFoundError(JobsError):
    """No object has the given name."""

    exit_code = 21


class ConflictError(JobsError):
    """The request conflicts with the state of a run."""

    exit_code = 22


class ClusterError(JobsError):
    """A Ray cluster does not respond, or there is no Ray cluster at the address."""

    exit_code = 23


class RefusedError(ClusterError):
    """A Ray cluster rejects the request, and would reject a retry."""


class JobLostError(ClusterError):
    """No job of the run can be running, since the cluster accepts none, has lost it, or was taken down."""


class ClusterGoneError(JobLostError):
    """The cluster was taken down or its processes have ended, and thus its jobs."""


class ServiceError(JobsError):
    """The Rayscribe service, or the ledger's database, does not respond."""

    exit_code = 24


class LedgerError(ServiceError):
    """The ledger's database does not respond.

    An API client gets the message `for_clients`, since the original names the database, perhaps a file of the host.
    """

    for_clients = (
        "the service's database does not respond: try again, or inform the service's administrator; its log has more"
    )


class AuthError(JobsError):
    """The token is missing, not known, or not allowed to do this."""

    exit_code = 25


class PreflightError(JobsError):
    """A check before submission found an error."""

    exit_code = 26


class LeaseLostError(Exception):
    """Another service holds the lease now; the pending write was not made."""


def suggest_names(name: str, names: Sequence[str], *, or_else: str) -> str:
    """Returns the end of a message about an unknown name."""
    # A truncated name is not similar enough for difflib.
    near = difflib.get_close_matches(name, names, n=3) or [each for each in names if each.startswith(name)][:3]
    return f"did you mean {' or '.join(near)}?" if near else or_else
