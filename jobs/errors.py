"""What can go wrong on the client's and the service's side, as one tree below RayscribeError.

RayscribeError              see trainers.errors: config 2, data 3, storage 4, resume 5, resources 6, scoring 7, …
└── JobsError               anything that the jobs side raises on purpose
    ├── NotFoundError       no run, attempt, queue or token has this name
    ├── ConflictError       the run's state, or another run, does not allow what is asked
    ├── ClusterError        a Ray cluster does not answer
    │   └── RefusedError    it answers, and refuses the request
    ├── ServiceError        the Rayscribe service, or its database, does not answer
    ├── AuthError           no token, an unknown one, or one that may not do this
    └── PreflightError      a check before submission found a fault
LeaseLostError              another service has taken over; this one must not act
"""

from trainers.errors import RayscribeError


class JobsError(RayscribeError):
    """Base of the jobs side's errors; each has an exit code that no training ends with."""

    exit_code = 20


class NotFoundError(JobsError):
    """Nothing has the name that was given."""

    exit_code = 21


class ConflictError(JobsError):
    """What is asked cannot be done in the state that things are in."""

    exit_code = 22


class ClusterError(JobsError):
    """A Ray cluster does not answer, or not as one."""

    exit_code = 23


class RefusedError(ClusterError):
    """A Ray cluster answers that the request cannot be; the same again would be refused again."""


class ServiceError(JobsError):
    """The Rayscribe service, or the ledger's database, does not answer."""

    exit_code = 24


class AuthError(JobsError):
    """No token was given, or it is not one that may do this."""

    exit_code = 25


class PreflightError(JobsError):
    """A check found a fault before the cluster did."""

    exit_code = 26


class LeaseLostError(Exception):
    """Another service holds the lease now: whatever this one was about to write was not written."""
