"""A head and a worker in network namespaces, started by the commands of a `ray up` file, and called without its token.

The first process of a pid, mount and network namespace of its own: all that it starts ends with it. Takes the file
and the token's file, and prints what it found as JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import psutil
import yaml

from tests.integration import open_calls
from trainers.distributed.local_ray import without_ray_settings

HEAD, WORKER = "10.77.0.1", "10.77.0.2"
OWN_FOLDERS = ("/tmp/ray", "/dev/shm")
OUTPUT, INTRUDER = Path("/tmp/ray/output"), Path("/tmp/ray/intruder")
DASHBOARD = "http://127.0.0.1:8265"
# Two nodes start on two cores, and others may be at work there.
TIMEOUT_S = 200
RAY = str(Path(sys.executable).with_name("ray"))
WITHOUT_TOKEN = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False)"
SLEEPING_JOB = """
import ray, time

@ray.remote
def nap():
    time.sleep(3600)

ray.get(nap.remote())
"""


def main(cluster_file: Path, token_file: Path) -> dict[str, Any]:
    """Starts both nodes and a job, and calls every socket of both."""
    file = yaml.safe_load(cluster_file.read_text(encoding="utf-8"))
    token = token_file.read_text(encoding="utf-8")
    with_token = environment_of(token_file.parents[1])
    stranger = without_ray_settings() | {"HOME": "/none"}
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    worker = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
    wait_for(lambda: namespace_of(worker.pid) != namespace_of(os.getpid()), "the worker's network")
    connect(worker.pid)
    # Another mount namespace begins in the root folder.
    inside = ["nsenter", f"--target={worker.pid}", "--net", "--mount", f"--wd={Path.cwd()}"]
    OUTPUT.mkdir()
    start(file["head_start_ray_commands"], with_token)
    start(file["worker_start_ray_commands"], {**with_token, "RAY_HEAD_IP": HEAD}, inside)
    # It starts in the background.
    wait_for(lambda: any(f"--node_ip_address={WORKER}" in line for line in command_lines()), "raylet of the worker")
    job = [RAY, "job", "submit", f"--address={DASHBOARD}", "--no-wait", "--", sys.executable, "-c", SLEEPING_JOB]
    accepted = run(job, {**with_token, "RAY_AUTH_MODE": "token"})
    assert accepted.returncode == 0, accepted.stderr
    wait_for(lambda: any(name.startswith("ray::nap") for name in command_lines()), "the job's worker")
    # They try again for half a minute each before they give up.
    strangers = {name: spawned(command, name, stranger) for name, command in strangers_commands().items()}
    asked = run([*inside, sys.executable, "-m", "tests.integration.open_calls", "worker", WORKER], stranger)
    assert asked.returncode == 0, asked.stderr
    return {
        "sockets": [*open_calls.answers_of("head", HEAD), *json.loads(asked.stdout)],
        "strangers": {name: process.wait(TIMEOUT_S) for name, process in strangers.items()},
        "printed": {name: (OUTPUT / name).read_text(errors="replace") for name in strangers},
        "with_token": token_opens(token),
        "intruder": INTRUDER.exists(),
        "token_in_arguments": [line for line in command_lines() if token in line],
        "token_in_logs": [str(path) for path in Path("/tmp/ray").rglob("*") if path.is_file() and holds(path, token)],
    }


def strangers_commands() -> dict[str, list[str]]:
    """What somebody without the token tries."""
    return {
        "ray job submit": [RAY, "job", "submit", f"--address={DASHBOARD}", "--", "touch", str(INTRUDER)],
        "ray.init": [sys.executable, "-c", WITHOUT_TOKEN, f"{HEAD}:6379"],
        "ray client": [sys.executable, "-c", WITHOUT_TOKEN, f"ray://{HEAD}:10001"],
    }


def spawned(command: Sequence[str], name: str, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Starts a command; its output is a file of OUTPUT."""
    with (OUTPUT / name).open("wb") as output:
        return subprocess.Popen(command, env=dict(environment), stdout=output, stderr=output, stdin=subprocess.DEVNULL)


def environment_of(home: Path) -> dict[str, str]:
    """Of a shell on a node: the token lies in its home, and nothing says so but the start commands."""
    own = without_ray_settings()
    return {**own, "HOME": str(home), "PATH": f"{Path(RAY).parent}:{own['PATH']}", "RAY_TMPDIR": "/tmp"}


def namespace_of(pid: int) -> str:
    """Which network a process is in."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def connect(worker: int) -> None:
    """A cable between this network and the worker's, and folders that each has for itself."""
    inside = ["nsenter", f"--target={worker}", "--net", "--mount"]
    commands = [
        ["ip", "link", "add", "head", "type", "veth", "peer", "name", "worker"],
        ["ip", "link", "set", "worker", "netns", str(worker)],
        ["ip", "addr", "add", f"{HEAD}/24", "dev", "head"],
        ["ip", "link", "set", "head", "up"],
        [*inside, "ip", "addr", "add", f"{WORKER}/24", "dev", "worker"],
        [*inside, "ip", "link", "set", "worker", "up"],
        [*inside, "ip", "link", "set", "lo", "up"],
    ]
    for folder in OWN_FOLDERS:
        Path(folder).mkdir(exist_ok=True)
        commands += [[*prefix, "mount", "-t", "tmpfs", "tmpfs", folder] for prefix in ([], inside)]
    for command in commands:
        subprocess.run(command, check=True)


def start(commands: Sequence[str], environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
    """Runs start commands as `ray up` does, one shell each; what `ray up` alone brings is left out."""
    for command in commands:
        # `ray stop` looks for Rays by name, in this process namespace on both nodes.
        if command != "ray stop":
            own = command.replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "").replace("ray stop; ", "")
            started = run([*prefix, "bash", "-c", own], environment)
            assert started.returncode == 0, f"{own}\n{started.stdout}\n{started.stderr}"


def run(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end."""
    # Ray's processes keep what they were started with: files, not pipes, so that nobody waits for them.
    with (OUTPUT / "stdout").open("w+") as out, (OUTPUT / "stderr").open("w+") as err:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, out.read(), err.read())


def token_opens(token: str) -> str:
    """Status of a harmless call with the token, so that the refusals are known to be for want of one."""
    with grpc.insecure_channel(f"{HEAD}:6379") as channel:
        return open_calls.call(channel, "/ray.rpc.NodeInfoGcsService/GetClusterId", token=token)


def command_lines() -> list[str]:
    """Of all processes here."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def holds(path: Path, token: str) -> bool:
    """Whether a file has the token."""
    with suppress(OSError):
        return token.encode() in path.read_bytes()
    return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, f"no {what} in {TIMEOUT_S} s"
        time.sleep(0.2)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
