"""Determines why a job ended from the response of Ray's Jobs API, first by exit code. Pure.

Texts and types are from ray 2.60: dashboard/modules/job/job_manager.py and job_supervisor.py, and, after `Job
supervisor actor died:`, its GCS and raylet. The tests have recorded responses.
"""

import re
import signal
from collections.abc import Sequence
from itertools import takewhile

from jobs.clusters.cluster import JobInfo
from jobs.model import Cause
from runtime_env.build import EXIT_CODE as SCRIPT_COULD_NOT_INSTALL
from runtime_env.credentials import masked
from trainers.errors import (
    ConfigError,
    DataError,
    DivergedError,
    FencedError,
    LostNodeError,
    LostWorkerError,
    MemoryExhaustedError,
    PackageError,
    RefusedError,
    ResourceError,
    ResumeError,
    ScoringError,
    StorageError,
)

# Exit codes of the entrypoint. 126 and 127 are the shell's, for a command that may not be run or does not exist.
USER_ERRORS = (
    *(ConfigError, DataError, DivergedError, PackageError, RefusedError, ResourceError, ResumeError, ScoringError),
)
EXIT_CODES = {
    **{error.exit_code: Cause.USER_ERROR for error in USER_ERRORS},
    StorageError.exit_code: Cause.STORAGE,
    LostWorkerError.exit_code: Cause.WORKER_LOST,
    MemoryExhaustedError.exit_code: Cause.OUT_OF_MEMORY,
    FencedError.exit_code: Cause.FENCED,
    LostNodeError.exit_code: Cause.NODE_LOST,
    SCRIPT_COULD_NOT_INSTALL: Cause.ENVIRONMENT,
    126: Cause.ENVIRONMENT,
    127: Cause.ENVIRONMENT,
}

# Part of the error of an unmodified program, see `trainers.scripts.program_worker`.
SCRIPT_ENDED = " ended with exit code {}:\n"

# Words in the last lines of the log, for exit codes without a meaning, since a user's own script has other codes.
LOG_WORDS = (
    ("CUDA out of memory", Cause.OUT_OF_MEMORY),
    ("OutOfMemoryError", Cause.OUT_OF_MEMORY),
    ("can't allocate memory", Cause.OUT_OF_MEMORY),
    ("low on memory", Cause.OUT_OF_MEMORY),
    ("its node has died", Cause.NODE_LOST),
    ("NodeDiedError", Cause.NODE_LOST),
    ("ModuleNotFoundError: No module named", Cause.ENVIRONMENT),
    ("\nImportError: ", Cause.ENVIRONMENT),
)

# Ray's JobErrorType and words of its message, for jobs without an exit code of the entrypoint. The first match is used.
ERROR_TYPES = (
    ("RUNTIME_ENV_SETUP_FAILURE", "", Cause.ENVIRONMENT),
    # The supervisor is the entrypoint's parent and dies with the entrypoint's node.
    ("JOB_SUPERVISOR_ACTOR_DIED", "its node has died", Cause.NODE_LOST),
    ("JOB_SUPERVISOR_ACTOR_DIED", "low on memory", Cause.OUT_OF_MEMORY),
    ("JOB_SUPERVISOR_ACTOR_DIED", "", Cause.DRIVER_KILLED),
    ("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "", Cause.NODE_LOST),
    # A restarted head finds the job's record, but no supervisor.
    ("JOB_SUPERVISOR_ACTOR_START_FAILURE", "failed to get job supervisor", Cause.NODE_LOST),
    ("JOB_SUPERVISOR_ACTOR_START_FAILURE", "", Cause.ENVIRONMENT),
    ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "", Cause.ENVIRONMENT),
    ("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", "low on memory", Cause.OUT_OF_MEMORY),
    ("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", "", Cause.DRIVER_KILLED),
    ("JOB_ENTRYPOINT_COMMAND_START_ERROR", "", Cause.ENVIRONMENT),
)

# Errors of a runtime environment that are transient, unlike that of a package that the index does not have.
TRANSIENT = re.compile(
    r"connection (refused|reset|broken|aborted|error)|ConnectionError|Max retries exceeded|"
    r"timed out|TimeoutError|ReadTimeout|ConnectTimeout|temporary failure|unreachable|error sending request|"
    r"Too Many Requests|Bad Gateway|Service Unavailable|Gateway Time-?out|Internal Server Error|failed to start within",
    re.IGNORECASE,
)
WHY_AN_ACTOR_DIED = ("The actor died because", "The actor is dead because")
# Part of a long message of Ray's memory monitor, which ends with advice on Ray's own settings.
LOW_ON_MEMORY = "killed due to the node running low on memory"
MAX_CHARACTERS = 500
_LAST_LOGS = "last available logs"
# In the log of a runtime environment, before indented lines of pip or uv.
_FAILED_COMMAND = "lines of stdout:\n"
_INDENT = "    "
# Prefix of uv's last lines, which give the cause of the error before them.
_CAUSE = "cause: "


def cause_of(job: JobInfo, *, stop_requested: bool) -> Cause:
    """Returns why a job ended or is no longer known; `stop_requested` is True if a user requested its stop here."""
    if not job.known:
        return Cause.STOPPED if stop_requested else Cause.CLUSTER_LOST
    if job.status == "SUCCEEDED":
        return Cause.SUCCEEDED
    if job.status == "STOPPED":
        return Cause.STOPPED  # also by someone's `ray job stop`, which is intentional
    if job.exit_code is not None:
        return _of_exit_code(job.exit_code, job.message, stop_requested)
    for error_type, words, cause in ERROR_TYPES:
        if job.error_type == error_type and words in job.message:
            return cause
    return Cause.DRIVER_KILLED


def line_of(job: JobInfo) -> str:
    """Returns the most informative line of Ray's message, without credentials; "" if there is none.

    The line includes text for `is_transient`: pip's last line says that there is no such package, but a line before it
    that no index responded.
    """
    lines = [line.strip() for line in job.message.splitlines() if line.strip()]
    if not lines or _LAST_LOGS in lines[-1]:  # followed by no logs
        return ""
    if job.error_type == "RUNTIME_ENV_SETUP_FAILURE" or job.exit_code == SCRIPT_COULD_NOT_INSTALL:
        return _shown(_installing_error(lines))
    return _shown(
        next((text for text in lines if text.startswith(WHY_AN_ACTOR_DIED) or LOW_ON_MEMORY in text), lines[-1])
    )


def line_of_setup(log_end: str) -> str:
    """Returns the most informative line of the last failed try in the log of a runtime environment; "" without one."""
    _, failed, rest = log_end.rpartition(_FAILED_COMMAND)
    lines = [line.strip() for line in takewhile(lambda line: line.startswith(_INDENT), rest.splitlines())]
    return _shown(_installing_error(lines)) if failed and lines else ""


def _installing_error(lines: Sequence[str]) -> str:
    causes = sum(1 for _ in takewhile(lambda line: line.startswith(_CAUSE), reversed(lines)))
    line = ", ".join(lines[-1 - causes :])
    earlier = None if is_transient(line) else next((text for text in lines if is_transient(text)), None)
    return line if earlier is None else f"{line} (before that: {earlier})"


def _shown(line: str) -> str:
    return masked(line.partition(" Some common causes")[0])[:MAX_CHARACTERS]


def is_transient(message: str) -> bool:
    """Returns True if an environment that failed with this message may succeed later."""
    return TRANSIENT.search(message) is not None


def _of_exit_code(code: int, message: str, stop_requested: bool) -> Cause:
    log = message.partition(_LAST_LOGS)[2]
    if SCRIPT_ENDED.format(code) in log:
        # The code is the program's own, even if it equals one of ours.
        return Cause.ENTRYPOINT
    # A shell in between returns 128 + signal, Python returns −signal.
    by_signal = -code if code < 0 else code - 128 if code > 128 else 0
    if by_signal in set(signal.Signals):
        return Cause.STOPPED if stop_requested else Cause.DRIVER_KILLED
    if code in EXIT_CODES:
        return EXIT_CODES[code]
    return next((cause for words, cause in LOG_WORDS if words in log), Cause.ENTRYPOINT)
