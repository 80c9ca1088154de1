"""The script really runs here, on this process's Python as the node's, against a real index."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime_env.build import EXIT_CODE, SCRIPT, render
from runtime_env.config import RuntimeEnvPart
from tests.runtime_env.package_index import PackageIndex, serving
from tests.runtime_env.ray_node import wait_for

# What only uses an installed environment shares one.
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("test_install_script")]

GOLDEN = Path(__file__).parent / "golden"
SAY = "import tiny_speech, sys; print(tiny_speech.VALUE, sys.executable)"


@contextmanager
def new_index() -> Iterator[PackageIndex]:
    index = PackageIndex("script-user-5Kq", "script-password-8Zw")
    index.add_wheel("tiny-speech", "1.2.3", "VALUE = 42\n")
    with serving(index):
        yield index


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with new_index() as index:
        yield index


class Node:
    """A folder with the script, and an environment to run it in."""

    def __init__(self, folder: Path, index: PackageIndex, **fields: object):
        self.folder, self.index = folder, index
        self.environments = folder / "environments"
        url = index.url("${INDEX_USER}:${INDEX_PASSWORD}")
        part = {"pip": ["tiny-speech==1.2.3"], "index_url": url, "install": "script", **fields}
        (folder / SCRIPT).write_text(render(RuntimeEnvPart.model_validate(part)))
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAYSCRIBE_ENVIRONMENTS": str(self.environments),
            "INDEX_USER": index.user,
            "INDEX_PASSWORD": index.password,
            # Nothing is found but what the index has.
            "PIP_CONFIG_FILE": "/dev/null",
            "UV_CACHE_DIR": str(folder / "uv-cache"),
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", SCRIPT, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that has its environment."""
    with new_index() as index:
        node = Node(tmp_path_factory.mktemp("node"), index)
        ended = node.run("true")
        assert ended.returncode == 0, ended.stderr
        yield node


@pytest.mark.long
def test_a_command_finds_the_packages_that_were_installed_once(tmp_path: Path, index: PackageIndex) -> None:
    node = Node(tmp_path, index)
    first, second = node.run("python", "-c", SAY), node.run("python", "-c", SAY)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.startswith(f"42 {node.environments}")
    assert "installing the job's packages" in first.stderr
    assert second.stderr == ""
    assert index.downloads("tiny-speech") == 1


def test_without_a_command_it_runs_task_py(installed: Node) -> None:
    (installed.folder / "task.py").write_text("import sys, tiny_speech; print(tiny_speech.VALUE, len(sys.argv))")
    ended = installed.run()
    assert (ended.returncode, ended.stdout) == (0, "42 1\n"), ended.stderr


def test_the_node_s_own_packages_stay_in_sight(installed: Node) -> None:
    ended = installed.run("python", "-c", "import ray, yaml; print(ray.__version__)")
    assert ended.returncode == 0, ended.stderr


def test_the_credentials_are_in_no_file_and_no_command_line(installed: Node) -> None:
    index = installed.index
    values = (index.user.encode(), index.password.encode())
    files = [path for path in installed.folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if any(value in path.read_bytes() for value in values)] == []
    assert index.shown == []
    assert {request.user for request in index.requests} == {index.user}


@pytest.mark.long
def test_several_processes_of_a_node_install_once(tmp_path: Path, index: PackageIndex) -> None:
    node = Node(tmp_path, index)
    index.gate.clear()
    processes = [node.start("python", "-c", SAY) for _ in range(3)]
    wait_for(lambda: index.requests, "a request")
    index.gate.set()
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ends
    assert index.downloads("tiny-speech") == 1


@pytest.mark.long
def test_installing_outlives_the_process_that_began_it(tmp_path: Path, index: PackageIndex) -> None:
    node = Node(tmp_path, index)
    index.gate.clear()
    process = node.start("python", "-c", SAY)
    wait_for(lambda: index.requests, "a request")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    index.gate.set()
    ended = node.run("python", "-c", SAY)
    assert ended.returncode == 0, ended.stderr
    assert index.downloads("tiny-speech") == 1


@pytest.mark.long
def test_what_was_installed_by_half_is_installed_anew(tmp_path: Path, index: PackageIndex) -> None:
    node = Node(tmp_path, index)
    assert node.run("true").returncode == 0
    (environment,) = (path for path in node.environments.iterdir() if path.is_dir())
    (environment / ".ready").unlink()
    (environment / "bin" / "python").unlink()
    ended = node.run("python", "-c", SAY)
    assert ended.returncode == 0, ended.stderr


def test_the_command_s_exit_code_comes_through(installed: Node) -> None:
    assert installed.run("python", "-c", "raise SystemExit(7)").returncode == 7


def test_inside_it_workers_are_told_to_start_the_same_way(installed: Node) -> None:
    inner = f"$RAYSCRIBE_PY_EXECUTABLE -c '{SAY}'; PATH=/nowhere:$PATH python -c '{SAY}'"
    ended = installed.run("bash", "-c", inner)
    first, second = ended.stdout.splitlines()
    assert first == second
    assert first.startswith(f"42 {installed.environments}")


@pytest.mark.long
def test_a_missing_package_is_an_exit_code_of_its_own(tmp_path: Path, index: PackageIndex) -> None:
    ended = Node(tmp_path, index, pip=["tiny-speech==9.9"]).run("python", "-c", SAY)
    assert ended.returncode == EXIT_CODE
    assert "No matching distribution found for tiny-speech==9.9" in ended.stderr
    assert "could not be installed on" in ended.stderr
    assert index.user not in ended.stderr


@pytest.mark.long
def test_another_ray_is_refused(tmp_path: Path, index: PackageIndex) -> None:
    index.add_wheel("ray", "0.0.1", "")
    ended = Node(tmp_path, index, pip=["ray==0.0.1"]).run("true")
    assert ended.returncode == EXIT_CODE
    assert "another Ray than the cluster's" in ended.stderr


@pytest.mark.long
def test_a_python_without_ray_is_named(tmp_path: Path, index: PackageIndex) -> None:
    node = Node(tmp_path, index)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    node.environment["PATH"] = f"{tmp_path / 'bare' / 'bin'}:/usr/bin:/bin"
    ended = node.run("true")
    assert ended.returncode == EXIT_CODE
    assert f"{tmp_path / 'bare' / 'bin' / 'python'} has no Ray" in ended.stderr


@pytest.mark.long
def test_uv_installs_the_same(tmp_path: Path, index: PackageIndex) -> None:
    node = Node(tmp_path, index, pip=None, uv=["tiny-speech==1.2.3"])
    # Where the node has no uv, it comes from the node's own index.
    node.environment.pop("PIP_CONFIG_FILE")
    ended = node.run("python", "-c", SAY)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"42 {node.environments}")
    assert index.shown == []


@pytest.mark.core
def test_what_is_rendered_is_what_it_was() -> None:
    part = RuntimeEnvPart.model_validate(
        {
            "pip": ["tiny-speech==1.2.3"],
            "install": "script",
            "index_url": "https://${INDEX_TOKEN}@packages.example/simple",
        }
    )
    assert render(part) == (GOLDEN / SCRIPT).read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z_]+@", render(part))


@pytest.mark.long
def test_each_list_of_requirements_has_an_environment_of_its_own(tmp_path: Path, index: PackageIndex) -> None:
    index.add_wheel("tiny-speech", "2.0", "VALUE = 43\n")
    assert Node(tmp_path, index).run("python", "-c", SAY).stdout.startswith("42")
    assert Node(tmp_path, index, pip=["tiny-speech==2.0"]).run("python", "-c", SAY).stdout.startswith("43")


@pytest.mark.core
def test_the_script_is_sound_to_shellcheck() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    ended = subprocess.run([shellcheck, GOLDEN / SCRIPT], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
