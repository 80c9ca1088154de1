"""Real jobs on a real Ray, whose packages come from a private index; credentials are in the node's environment only."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from ray.job_submission import JobStatus

from runtime_env.build import EXIT_CODE, build_runtime_env, script_files, wrap_entrypoint
from runtime_env.config import RuntimeEnvPart
from runtime_env.package import LIMIT_BYTES, pack
from runtime_env.tree import list_tree
from tests.runtime_env.package_index import PackageIndex, serving
from tests.runtime_env.ray_node import JobEnd, RayNode, ray_node, thin_python, wait_for
from tests.runtime_env.test_tree import grow
from trainers.config.secrets import resolve_secrets

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.xdist_group("test_on_ray")]

SAY = "import sys, tiny_speech; print('said', tiny_speech.VALUE, sys.executable)\n"
SECRET, FILE_SECRET = "s3cret-of-the-node-4Wd", "s3cret-in-a-file-9Xe"
# Short, so that a worker that installs is killed by Ray in the midst of it.
REGISTER_TIMEOUT_S = 12


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    index = PackageIndex("index-user-7Qm", "index-password-2Rt")
    index.add_wheel("tiny-speech", "1.2.3", "VALUE = 42\n")
    index.add_wheel("tiny-tool", "1.0", "")
    index.add_source("tiny-built", "2.0", "VALUE = 7\n", needs="tiny-tool")
    with serving(index):
        yield index


@pytest.fixture(scope="module")
def node(index: PackageIndex, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNode]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "token").write_text(f"{FILE_SECRET}\n")
    environment = {
        "INDEX_USER": index.user,
        "INDEX_PASSWORD": index.password,
        "TEAM_KEY": SECRET,
        "TOKEN_FILE": str(folder / "token"),
        # pip keeps what comes over plain HTTP from hosts that it is told to trust, and over HTTPS from all.
        "PIP_TRUSTED_HOST": "127.0.0.1",
        "PIP_RETRIES": "0",
        "RUNTIME_ENV_RETRY_TIMES": "1",
        "RAY_worker_register_timeout_seconds": str(REGISTER_TIMEOUT_S),
    }
    with ray_node(thin_python(folder / "venv"), environment) as node:
        yield node


@pytest.fixture(autouse=True)
def fresh_diary(index: PackageIndex) -> None:
    index.requests.clear()
    index.broken = False
    index.gate.set()


class Repository:
    """A working directory, and the jobs that are started with it."""

    numbers = itertools.count()

    def __init__(self, folder: Path, node: RayNode, index: PackageIndex):
        self.folder, self.node = folder, node
        self.private = {"index_url": index.url("${INDEX_USER}:${INDEX_PASSWORD}")}

    def run(self, code: str, **fields: Any) -> JobEnd:
        part = RuntimeEnvPart.model_validate(fields)
        grow(self.folder / "root", {"task.py": code})
        package = pack(list_tree(self.folder / "root", []), self.folder / "packages", script_files(part))
        runtime_env = build_runtime_env(
            part,
            package=str(package.path),
            stop_grace_s=30,
            environment={"RAYSCRIBE_SUBMISSION_ID": f"job-{next(self.numbers)}"},
        )
        return self.node.run(wrap_entrypoint(part, "python task.py"), runtime_env)


@pytest.fixture
def repository(tmp_path: Path, node: RayNode, index: PackageIndex) -> Repository:
    return Repository(tmp_path, node, index)


def traces(node: RayNode, *values: str) -> list[str]:
    """Files of Ray's session and of its user's home that hold one of the values."""
    wanted = [value.encode() for value in values]
    files = [path for folder in (node.session, node.home) for path in folder.rglob("*")]
    plain = [path for path in files if path.is_file() and not path.is_symlink()]
    assert len(plain) > 20
    return [str(path) for path in plain if any(value in path.read_bytes() for value in wanted)]


def said(end: JobEnd) -> str:
    assert end.status == JobStatus.SUCCEEDED, f"{end.message}\n{end.logs}"
    return next(line for line in end.logs.splitlines() if line.startswith("said "))


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_private_index_is_asked_once_and_its_credentials_leave_no_trace(
    repository: Repository, index: PackageIndex, tool: str
) -> None:
    same = {tool: ["tiny-speech==1.2.3", "tiny-tool"]}
    end = repository.run(SAY, **same, **repository.private)
    assert f"runtime_resources/{tool}/" in said(end)
    assert said(end).startswith("said 42 ")
    assert {request.user for request in index.requests} == {index.user}
    assert index.shown == []
    assert traces(repository.node, index.user, index.password) == []
    for text in (end.shown, end.logs, end.message):
        assert index.user not in text
        assert index.password not in text
    assert "${INDEX_USER}" in end.shown.replace("${RAYSCRIBE_DOLLAR}", "$")
    index.requests.clear()
    # The code has changed since, the packages have not.
    assert said(repository.run(f"{SAY}# changed\n", **same, **repository.private)) == said(end)
    assert index.requests == []
    other = said(repository.run(SAY, **{tool: ["tiny-tool", "tiny-speech==1.2.3"]}, **repository.private))
    assert other != said(end)
    assert (index.downloads("tiny-speech"), index.downloads("tiny-tool")) == (0, 0)


def test_uv_builds_from_source_without_showing_credentials(repository: Repository, index: PackageIndex) -> None:
    code = "import tiny_built; print('said', tiny_built.VALUE)"
    assert said(repository.run(code, uv=["tiny-built==2.0"], **repository.private)) == "said 7"
    # How often it is fetched is uv's: twice where the index has no metadata apart, not at all from its cache.
    assert any("tiny-tool" in request.path for request in index.requests)
    assert index.shown == []
    assert traces(repository.node, index.user, index.password) == []


def test_pip_builds_nothing_while_it_knows_credentials(repository: Repository, index: PackageIndex) -> None:
    # Without --only-binary, pip starts a pip with the index URL in its command line to fetch what the build needs.
    end = repository.run(SAY, pip=["tiny-built==2.0"], **repository.private)
    assert end.status == JobStatus.FAILED
    assert "No matching distribution found for tiny-built==2.0" in end.message
    assert index.shown == []
    assert traces(repository.node, index.user, index.password) == []


@pytest.mark.parametrize(
    ("tool", "says"),
    [("pip", "No matching distribution found for tiny-speech==9.9"), ("uv", "there is no version of tiny-speech==9.9")],
)
def test_a_missing_package_fails_the_job_before_it_starts(
    repository: Repository, index: PackageIndex, tool: str, says: str
) -> None:
    end = repository.run(SAY, **{tool: ["tiny-speech==9.9"]}, **repository.private)
    assert end.status == JobStatus.FAILED
    assert end.message.startswith("runtime_env setup failed: Failed to set up runtime environment.")
    assert says in end.message
    assert "RUNTIME_ENV_SETUP_FAILURE" in end.shown
    assert "Running entrypoint" not in end.logs
    assert index.user not in end.message + end.logs


def test_ray_remembers_a_failure_but_not_for_another_attempt(
    repository: Repository, index: PackageIndex, tmp_path: Path
) -> None:
    part = RuntimeEnvPart.model_validate({"pip": ["tiny-tool==1.0", "tiny-speech"], **repository.private})
    grow(tmp_path / "root", {"task.py": SAY})
    package = pack(list_tree(tmp_path / "root", []), tmp_path / "packages")

    def attempt(name: str) -> JobEnd:
        runtime_env = build_runtime_env(
            part, package=str(package.path), stop_grace_s=30, environment={"RAYSCRIBE_SUBMISSION_ID": name}
        )
        return repository.node.run("python task.py", runtime_env)

    index.broken = True
    assert attempt("run-a1").status == JobStatus.FAILED
    assert index.requests
    index.broken = False
    index.requests.clear()
    same = attempt("run-a1")
    assert same.status == JobStatus.FAILED
    assert index.requests == []
    assert said(attempt("run-a2")).startswith("said 42 ")


SECRETS = """
import os, ray
from trainers.config.secrets import resolve_secrets

@ray.remote
def in_a_worker():
    resolve_secrets(os.environ)
    return [len(os.environ[name]) for name in ("MODEL_KEY", "HUB_TOKEN")]

before = [os.environ.get(name) for name in ("MODEL_KEY", "HUB_TOKEN")]
resolve_secrets(os.environ)
ray.init(log_to_driver=False)
here = [len(os.environ[name]) for name in ("MODEL_KEY", "HUB_TOKEN")]
print("said", before, here, ray.get(in_a_worker.remote()))
"""


def test_secrets_are_resolved_on_the_node_and_nowhere_else(repository: Repository, tmp_path: Path) -> None:
    trainers = Path(sys.modules[resolve_secrets.__module__].__file__ or "").parents[1]
    needed = ("__init__.py", "errors.py", "config/__init__.py", "config/secrets.py")
    grow(tmp_path / "root", {f"trainers/{name}": (trainers / name).read_text() for name in needed})
    file = Path(repository.node.environment["TOKEN_FILE"])
    end = repository.run(SECRETS, secrets={"MODEL_KEY": {"env": "TEAM_KEY"}, "HUB_TOKEN": {"file": str(file)}})
    lengths = [len(SECRET), len(FILE_SECRET)]
    assert said(end) == f"said [None, None] {lengths} {lengths}"
    assert traces(repository.node, SECRET, FILE_SECRET) == []
    for value in (SECRET, FILE_SECRET):
        assert value not in end.shown + end.logs + end.message


WITH_WORKERS = """
import os, sys, ray, tiny_speech

ray.init(runtime_env={"py_executable": os.environ["RAYSCRIBE_PY_EXECUTABLE"]}, log_to_driver=False)

@ray.remote(num_cpus=1)
class Worker:
    def say(self):
        import tiny_speech
        return tiny_speech.VALUE, sys.executable

workers = [Worker.remote() for _ in range(3)]
places = set(ray.get([worker.say.remote() for worker in workers]))
print("said", places == {(tiny_speech.VALUE, sys.executable)}, sys.executable)
"""


def test_the_install_script_serves_the_driver_and_its_workers(repository: Repository, index: PackageIndex) -> None:
    end = repository.run(WITH_WORKERS, pip=["tiny-speech==1.2.3"], install="script", **repository.private)
    assert said(end).startswith(f"said True {repository.node.home}/.cache/rayscribe/environments/")
    assert index.shown == []
    assert traces(repository.node, index.user, index.password) == []


INSTALLING_WORKER = """
import os, sys, ray

# As on a node where no driver has run before: the worker comes first.
ray.init(runtime_env={"py_executable": "bash install_and_run.sh python"}, log_to_driver=False)

@ray.remote
def say():
    import tiny_tool
    return sys.executable

print("said", ray.get(say.remote()))
"""


def test_a_worker_that_ray_kills_while_it_installs_starts_later(
    repository: Repository, index: PackageIndex, tmp_path: Path
) -> None:
    part = RuntimeEnvPart.model_validate({"pip": ["tiny-tool"], "install": "script", **repository.private})
    grow(tmp_path / "root", {"task.py": INSTALLING_WORKER})
    package = pack(list_tree(tmp_path / "root", []), tmp_path / "packages", script_files(part))
    runtime_env = build_runtime_env(part, package=str(package.path), stop_grace_s=30)
    index.gate.clear()
    submission_id = repository.node.client.submit_job(entrypoint="python task.py", runtime_env=runtime_env)
    log = repository.node.session / "logs" / "raylet.out"
    wait_for(lambda: "have not registered within the timeout" in log.read_text(), "an impatient Ray", log)
    index.gate.set()
    assert "/rayscribe/environments/" in said(repository.node.end_of(submission_id))
    assert index.downloads("tiny-tool") <= 1


def test_a_script_that_cannot_install_has_an_exit_code_of_its_own(repository: Repository) -> None:
    end = repository.run(SAY, pip=["tiny-speech==9.9"], install="script", **repository.private)
    assert end.status == JobStatus.FAILED
    assert end.exit_code == EXIT_CODE
    assert "No matching distribution found for tiny-speech==9.9" in end.message


LEAVING = """
import pathlib, signal, sys, time

def leave(number, frame):
    # Longer than the three seconds that Ray gives unless it is told otherwise.
    time.sleep(6)
    pathlib.Path({mark!r}).write_text("left in peace")
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
print("said ready")
pathlib.Path({ready!r}).touch()
time.sleep(600)
"""


def test_a_stopped_job_has_its_grace(repository: Repository, tmp_path: Path) -> None:
    mark, ready = tmp_path / "mark", tmp_path / "ready"
    grow(tmp_path / "root", {"task.py": LEAVING.format(mark=str(mark), ready=str(ready))})
    package = pack(list_tree(tmp_path / "root", []), tmp_path / "packages")
    runtime_env = build_runtime_env(RuntimeEnvPart(), package=str(package.path), stop_grace_s=60)
    client = repository.node.client
    submission_id = client.submit_job(entrypoint="python task.py", runtime_env=runtime_env)
    wait_for(ready.exists, "a running job")
    client.stop_job(submission_id)
    assert repository.node.end_of(submission_id).status == JobStatus.STOPPED
    assert mark.read_text() == "left in peace"


def test_ray_takes_a_package_below_the_limit_and_no_larger_one(node: RayNode) -> None:
    url = f"{node.address}/api/packages/gcs/_ray_pkg_size.zip"
    refused = requests.put(url, data=bytes(LIMIT_BYTES + 1), timeout=120)
    assert refused.status_code == requests.codes.request_entity_too_large
    assert requests.put(url, data=bytes(LIMIT_BYTES - 1), timeout=120).ok
