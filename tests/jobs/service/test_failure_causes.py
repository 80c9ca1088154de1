"""Why a job ended.

The longer messages are what Ray 2.60 said of real jobs, stack traces and the memory monitor's list shortened.
"""

import pytest

from jobs.clusters.cluster import JobInfo
from jobs.model import Cause
from jobs.service.failure_causes import cause_of, is_transient, line_of, line_of_setup

ENDED_WITH = """\
Job entrypoint command failed with exit code {code}, last available logs (truncated to 20,000 chars):
2026-11-21 01:42:42,875\tINFO job_manager.py:581 -- Runtime env is setting up.
Running entrypoint for job one-a1: python task.py --config spec.yaml
{log}
"""
SUPERVISOR_KILLED = """\
Job supervisor actor died: The actor died unexpectedly before finishing this task.
\tclass_name: JobSupervisor
\tactor_id: 392ef06bf76c473f156c7ad202000000
\tpid: 29344
\tname: _ray_internal_job_actor_supervisor
\tnamespace: SUPERVISOR_ACTOR_RAY_NAMESPACE
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed \
by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly \
due to SIGSEGV or another unexpected error. If the process was killed by the kernel OOM killer (verifiable by checking \
for OOM in dmesg of the OOMing node), consider enabling resource isolation via --enable-resource-isolation to prevent \
node deaths by resource contention and significant loss of progress by uninformed kernel OOM killing."""
NODE_DIED = """\
Job supervisor actor died: The actor died unexpectedly before finishing this task.
\tclass_name: JobSupervisor
\tactor_id: 5492ba959cc96ecf2ff038f402000000
\tpid: 29803
\tname: _ray_internal_job_actor_node
\tnamespace: SUPERVISOR_ACTOR_RAY_NAMESPACE
\tip: 192.0.2.2
The actor died because its node has died. Node Id: 372407c79b6def5bac37dc31b58c451670bef62aa0499860172512af
\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats"""
MEMORY_MONITOR = """\
Unexpected error occurred: 1 worker(s) were killed due to the node running low on memory. Memory on the node \
(IP: 192.0.2.2, ID: 8d35bfcf) was 1.83GB used / 23.54GB limit (0.077884)
OOM kill reason: Memory usage 1965383680B exceeded threshold of 1962203648B (7.8% of 25276502016B limit)
Ray killed 1 worker(s) based on the killing policy
Considered workers: [
Selected to kill: (Actor(8ee60759): job ID=01000000, task name=_ray_internal_job_actor_large-a4:JobSupervisor.__init__)
]
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/en/latest/ray-observability/\
user-guides/debug-apps/debug-memory.html. To disable worker killing, set the environment variable \
`RAY_memory_monitor_refresh_ms` to zero."""
NO_SUCH_PACKAGE = """\
runtime_env setup failed: Failed to set up runtime environment.
Could not create the actor because its associated runtime env failed to be created.
[Node 192.0.2.2] Traceback (most recent call last):
  File "/ray/_private/runtime_env/agent/runtime_env_agent.py", line 561, in _create_runtime_env_with_retry
    runtime_env_context = await asyncio.wait_for(
                          ^^^^^^^^^^^^^^^^^^^^^^^
  File "/ray/_private/runtime_env/utils.py", line 105, in check_output_cmd
    raise SubprocessCalledProcessError(
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed with the following details.
Command '['/virtualenv/bin/python', '-m', 'pip', 'install', '-r', 'requirements.txt', '--disable-pip-version-check', \
'--no-cache-dir']' returned non-zero exit status 1.
Last 50 lines of stdout:
    Looking in indexes: https://pypi.org/simple
    ERROR: Could not find a version that satisfies the requirement no-such-package==9.9 (from versions: none)
    ERROR: No matching distribution found for no-such-package==9.9
"""
INDEX_DOES_NOT_ANSWER = NO_SUCH_PACKAGE.replace(
    "    ERROR: Could not",
    "    WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(\"Failed to establish a new "
    "connection: [Errno 111] Connection refused\")': /simple/no-such-package/\n    ERROR: Could not",
)
UV_INDEX_IS_MUTE = (
    NO_SUCH_PACKAGE.partition("    Looking")[0]
    + """\
    Using Python 3.11.7 environment at: /virtualenv
    error: Request failed after 1 retry in 61.7s
      cause: Failed to fetch: http://127.0.0.1:35643/simple/tiny-speech/
      cause: operation timed out
"""
)
PACKAGE_DOES_NOT_COME = """\
runtime_env setup failed: Failed to set up runtime environment.
Could not create the actor because its associated runtime env failed to be created.
[Node 192.0.2.2] Traceback (most recent call last):
  File "/smart_open/http.py", line 195, in __init__
    self.response = self.session.get(
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='127.0.0.1', port=9): Max retries exceeded with url: \
/none.zip (Caused by NewConnectionError("HTTPSConnection(host='127.0.0.1', port=9): Failed to establish a new \
connection: [Errno 111] Connection refused"))
"""
START_TIMEOUT = (
    "Job supervisor actor failed to start within 15.0 seconds. This timeout can be configured by setting the "
    "environment variable RAY_JOB_START_TIMEOUT_SECONDS. This may be because the job entrypoint's specified resources "
    "(entrypoint_num_cpus, entrypoint_num_gpus, entrypoint_resources, entrypoint_memory)aren't available on the "
    "cluster. Try checking the cluster's available resources with `ray status` and specifying fewer resources for the "
    "job entrypoint."
)
NO_SUPERVISOR = "Unexpected error occurred: failed to get job supervisor."
NOT_STARTED = "Failed to start supervisor actor one-a1: 'bad runtime_env'. Full traceback:\nTraceback …"
COMMAND_ERROR = "JOB_ENTRYPOINT_COMMAND_ERROR"


def ended_with(code: int, log: str = "") -> JobInfo:
    """A job whose entrypoint gave back this code."""
    message = ENDED_WITH.format(code=code, log=log)
    return JobInfo(known=True, status="FAILED", exit_code=code, message=message, error_type=COMMAND_ERROR)


def failed(error_type: str, message: str) -> JobInfo:
    """A job whose entrypoint gave back nothing."""
    return JobInfo(known=True, status="FAILED", message=message, error_type=error_type)


@pytest.mark.parametrize("code", [1, 2, 7, 10, 11, 126, 137])
def test_a_programs_own_exit_code_means_nothing_to_us(code: int) -> None:
    log = f"error: rank 1: the program train.py ended with exit code {code}:\n  ValueError: x"
    assert cause_of(ended_with(code, log), stop_requested=False) == Cause.ENTRYPOINT


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (1, Cause.ENTRYPOINT),
        (2, Cause.USER_ERROR),
        (3, Cause.USER_ERROR),
        (4, Cause.STORAGE),
        (5, Cause.USER_ERROR),
        (6, Cause.USER_ERROR),
        (7, Cause.USER_ERROR),
        (8, Cause.WORKER_LOST),
        (9, Cause.OUT_OF_MEMORY),
        (10, Cause.FENCED),
        (11, Cause.NODE_LOST),
        (12, Cause.ENVIRONMENT),
        (13, Cause.USER_ERROR),
        (14, Cause.USER_ERROR),
        (15, Cause.ENTRYPOINT),
        (120, Cause.ENTRYPOINT),
        (126, Cause.ENVIRONMENT),
        (127, Cause.ENVIRONMENT),
        (-9, Cause.DRIVER_KILLED),
        (-11, Cause.DRIVER_KILLED),
        (130, Cause.DRIVER_KILLED),
        (137, Cause.DRIVER_KILLED),
        (139, Cause.DRIVER_KILLED),
        (143, Cause.DRIVER_KILLED),
        (255, Cause.ENTRYPOINT),
    ],
)
def test_the_exit_code_comes_first(code: int, cause: Cause) -> None:
    assert cause_of(ended_with(code), stop_requested=False) == cause


@pytest.mark.parametrize(
    ("error_type", "message", "cause"),
    [
        ("RUNTIME_ENV_SETUP_FAILURE", NO_SUCH_PACKAGE, Cause.ENVIRONMENT),
        ("RUNTIME_ENV_SETUP_FAILURE", PACKAGE_DOES_NOT_COME, Cause.ENVIRONMENT),
        ("JOB_SUPERVISOR_ACTOR_DIED", SUPERVISOR_KILLED, Cause.DRIVER_KILLED),
        ("JOB_SUPERVISOR_ACTOR_DIED", NODE_DIED, Cause.NODE_LOST),
        ("JOB_SUPERVISOR_ACTOR_DIED", MEMORY_MONITOR, Cause.OUT_OF_MEMORY),
        ("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", MEMORY_MONITOR, Cause.OUT_OF_MEMORY),
        ("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", START_TIMEOUT, Cause.ENVIRONMENT),
        ("JOB_SUPERVISOR_ACTOR_START_FAILURE", NO_SUPERVISOR, Cause.NODE_LOST),
        ("JOB_SUPERVISOR_ACTOR_START_FAILURE", NOT_STARTED, Cause.ENVIRONMENT),
        ("JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", "Job supervisor actor could not be scheduled: …", Cause.NODE_LOST),
        ("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", "Unexpected error occurred: …", Cause.DRIVER_KILLED),
        ("JOB_ENTRYPOINT_COMMAND_START_ERROR", "Traceback …", Cause.ENVIRONMENT),
        ("", "Job failed.", Cause.DRIVER_KILLED),
        ("SOMETHING_OF_A_LATER_RAY", "…", Cause.DRIVER_KILLED),
    ],
)
def test_without_an_exit_code_rays_type_and_words_tell(error_type: str, message: str, cause: Cause) -> None:
    assert cause_of(failed(error_type, message), stop_requested=False) == cause


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Cause.OUT_OF_MEMORY),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", Cause.OUT_OF_MEMORY),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            Cause.OUT_OF_MEMORY,
        ),
        ("The actor died because its node has died. Node Id: 372407c79b6d", Cause.NODE_LOST),
        ("ModuleNotFoundError: No module named 'jiwer'", Cause.ENVIRONMENT),
        ("ImportError: cannot import name 'a' from 'b' (/b.py)", Cause.ENVIRONMENT),
        ("ZeroDivisionError: division by zero", Cause.ENTRYPOINT),
    ],
)
def test_where_the_code_says_nothing_the_end_of_the_log_does(log: str, cause: Cause) -> None:
    assert cause_of(ended_with(1, log), stop_requested=False) == cause


def test_what_the_log_says_never_contradicts_an_exit_code_of_ours() -> None:
    assert cause_of(ended_with(4, "ModuleNotFoundError: No module named 'x'"), stop_requested=False) == Cause.STORAGE


def test_success_is_success_even_after_a_stop_was_asked_for() -> None:
    assert cause_of(JobInfo(known=True, status="SUCCEEDED", exit_code=0), stop_requested=True) == Cause.SUCCEEDED


@pytest.mark.parametrize("asked_here", [True, False])
def test_a_job_that_somebody_stopped_is_stopped(asked_here: bool) -> None:
    job = JobInfo(known=True, status="STOPPED", message="Job was intentionally stopped.")
    assert cause_of(job, stop_requested=asked_here) == Cause.STOPPED


@pytest.mark.parametrize("code", [143, 137, 130, -15])
def test_a_signal_is_a_stop_only_where_one_was_asked_for(code: int) -> None:
    assert cause_of(ended_with(code), stop_requested=True) == Cause.STOPPED
    assert cause_of(ended_with(code), stop_requested=False) == Cause.DRIVER_KILLED


def test_other_ends_keep_their_cause_while_a_stop_is_asked_for() -> None:
    assert cause_of(ended_with(4), stop_requested=True) == Cause.STORAGE


def test_a_job_that_the_cluster_does_not_know_is_lost_unless_it_was_to_stop() -> None:
    assert cause_of(JobInfo(known=False), stop_requested=False) == Cause.CLUSTER_LOST
    assert cause_of(JobInfo(known=False), stop_requested=True) == Cause.STOPPED


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (ended_with(1, "ValueError: no\n"), "ValueError: no"),
        (
            failed("JOB_SUPERVISOR_ACTOR_DIED", NODE_DIED),
            "The actor died because its node has died. Node Id: "
            "372407c79b6def5bac37dc31b58c451670bef62aa0499860172512af",
        ),
        (
            failed("JOB_SUPERVISOR_ACTOR_DIED", SUPERVISOR_KILLED),
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits with a connection error code 2. End of file.",
        ),
        (
            failed("RUNTIME_ENV_SETUP_FAILURE", NO_SUCH_PACKAGE),
            "ERROR: No matching distribution found for no-such-package==9.9",
        ),
        (
            failed("JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE", MEMORY_MONITOR),
            "Unexpected error occurred: 1 worker(s) were killed due to the node running low on memory. Memory on the "
            "node (IP: 192.0.2.2, ID: 8d35bfcf) was 1.83GB used / 23.54GB limit (0.077884)",
        ),
        (JobInfo(known=False), ""),
    ],
)
def test_the_line_that_says_most_is_picked(job: JobInfo, line: str) -> None:
    assert line_of(job) == line


def test_a_package_that_is_missing_is_told_from_an_index_that_does_not_answer() -> None:
    missing = line_of(failed("RUNTIME_ENV_SETUP_FAILURE", NO_SUCH_PACKAGE))
    silent = line_of(failed("RUNTIME_ENV_SETUP_FAILURE", INDEX_DOES_NOT_ANSWER))
    assert not is_transient(missing)
    assert is_transient(silent)
    assert "No matching distribution found" in silent
    mute = line_of(failed("RUNTIME_ENV_SETUP_FAILURE", UV_INDEX_IS_MUTE))
    assert mute == (
        "error: Request failed after 1 retry in 61.7s, "
        "cause: Failed to fetch: http://127.0.0.1:35643/simple/tiny-speech/, cause: operation timed out"
    )
    assert is_transient(mute)
    assert is_transient(line_of(failed("RUNTIME_ENV_SETUP_FAILURE", PACKAGE_DOES_NOT_COME)))
    assert is_transient(line_of(failed("JOB_SUPERVISOR_ACTOR_START_TIMEOUT", START_TIMEOUT)))
    assert not is_transient(line_of(ended_with(127, "/bin/sh: 1: no_such_command: not found")))


@pytest.mark.parametrize("message", [NO_SUCH_PACKAGE, INDEX_DOES_NOT_ANSWER, UV_INDEX_IS_MUTE])
def test_the_log_of_a_setup_that_goes_on_has_the_line_that_ray_tells_at_its_end(message: str) -> None:
    stamp = "2026-11-21 01:42:42,875\tINFO utils.py:76 --"
    begun = f"{stamp} Run cmd[1] ['python', '-m', 'pip', 'install']\n"
    again = f"{begun}{stamp} Output of cmd[9]: ERROR: No\n{message}{begun}"
    assert line_of_setup(again) == line_of(failed("RUNTIME_ENV_SETUP_FAILURE", message))
    assert line_of_setup(begun) == line_of_setup("") == ""
    assert "s3cret" not in line_of_setup(message.replace("Looking", "x").replace("ERROR: No", "http://u:s3cret@x No"))


def test_credentials_in_urls_are_left_out() -> None:
    said = line_of(ended_with(1, "cannot reach https://ana:s3cret@pypi.example.com/simple"))
    assert said == "cannot reach https://…@pypi.example.com/simple"
