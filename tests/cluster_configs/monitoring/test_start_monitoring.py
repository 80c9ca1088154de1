"""Prometheus and Grafana on one machine: found, started on loopback, and ended together."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil
import pytest

from cluster_configs.monitoring.start_monitoring import DISCOVERY, discovery_files, main, ray_targets
from trainers.distributed.local_ray import free_ports

TIMEOUT_S = 120.0
# Says what it was started with, and ends on SIGTERM.
STAND_IN = """#!/bin/sh
echo "$0 $*" > "$STAND_INS/$(basename "$0")"
env | grep ^GF_ >> "$STAND_INS/$(basename "$0")"
exec sleep 600
"""


def start(folder: Path, *arguments: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """`make monitoring`, without the output of make."""
    command = [sys.executable, "-m", "cluster_configs.monitoring.start_monitoring", "--folder", str(folder), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """The lines up to one with this text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    raise AssertionError(f"it ended without {text!r}: {lines}")


def stop(process: "subprocess.Popen[str]", number: int) -> None:
    """Ends it as Ctrl-C or an init system does; nothing that it started lives on."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(TIMEOUT_S) == 0
    assert psutil.wait_procs(children, timeout=TIMEOUT_S)[1] == []


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_prometheus_listens_on_loopback_and_ends_with_us(tmp_path: Path, number: int) -> None:
    port, folder = free_ports(1)[0], tmp_path / "monitoring"
    arguments = (f"--prometheus-port={port}", f"--token-file={tmp_path / 'none'}")
    process = start(folder, *arguments, environment={**os.environ, "PATH": "/usr/bin:/bin"})
    lines = read_until(process, "Ctrl-C")
    assert any("no such file, so the service is not scraped" in line for line in lines)
    if shutil.which("grafana") is None:
        assert "Grafana is not installed: Prometheus runs alone. See https://grafana.com/docs" in lines
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            ready = httpx.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200
        except httpx.TransportError:
            ready = False
        if ready:
            break
        assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.1)
    listening = [item for item in psutil.net_connections("tcp") if item.status == "LISTEN" and item.laddr.port == port]
    assert [item.laddr.ip for item in listening] == ["127.0.0.1"]
    assert folder.stat().st_mode & 0o777 == 0o700
    stop(process, number)


def test_grafana_is_given_its_provisioning_and_loopback(tmp_path: Path) -> None:
    """With stand-ins for both programs."""
    for name in ("prometheus", "grafana"):
        (tmp_path / name).write_text(STAND_IN)
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "STAND_INS": str(tmp_path / "in"),
    }
    (tmp_path / "in").mkdir()
    ports = free_ports(2)
    folder, token = tmp_path / "monitoring", tmp_path / "token"
    token.write_text("rsk_secret")
    given = [f"--prometheus-port={ports[0]}", f"--grafana-port={ports[1]}", f"--token-file={token}"]
    process = start(folder, *given, environment=environment)
    assert f"Grafana: http://127.0.0.1:{ports[1]}/d/rayscribe" in read_until(process, "Ctrl-C")
    said = tmp_path / "in" / "grafana"
    end = time.monotonic() + TIMEOUT_S
    while not (said.exists() and "GF_SERVER_HTTP_PORT" in said.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    text = said.read_text()
    assert text.startswith(f"{tmp_path / 'grafana'} server --homepath=")
    assert "GF_SERVER_HTTP_ADDR=127.0.0.1\n" in text
    assert f"GF_PATHS_PROVISIONING={folder / 'provisioning'}\n" in text
    assert (folder / "provisioning" / "datasources" / "prometheus.yaml").is_file()
    assert "rsk_secret" not in (folder / "prometheus.yml").read_text()
    stop(process, signal.SIGINT)


def test_a_program_that_ends_by_itself_ends_the_other(tmp_path: Path) -> None:
    (tmp_path / "prometheus").write_text("#!/bin/sh\necho out of disk\nexit 3\n")
    (tmp_path / "prometheus").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    process = start(tmp_path / "data", f"--prometheus-port={free_ports(1)[0]}", environment=environment)
    read_until(process, f"error: Prometheus ended by itself: see {tmp_path / 'data' / 'log'}")
    assert process.wait(TIMEOUT_S) == 1
    assert "out of disk" in (tmp_path / "data" / "log").read_text()


def test_what_is_missing_or_taken_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--folder", str(tmp_path / "data"), "--token-file", str(tmp_path / "none")]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(arguments) == 2
    assert "apt-get install prometheus" in capsys.readouterr().err
    (tmp_path / "prometheus").write_text("#!/bin/sh\n")
    (tmp_path / "prometheus").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main([*arguments, "--prometheus-port", str(port)]) == 2
        assert f"port {port} is taken" in capsys.readouterr().err


def test_the_nodes_of_every_ray_of_this_machine_are_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    places = [tmp_path / name for name in ("own/rs-three/ray", "rs-one/ray", "rs-two/ray", "own/ray")]
    for number, place in enumerate(places):
        place.mkdir(parents=True)
        content = json.dumps([{"labels": {"job": "ray"}, "targets": [f"10.0.0.{number}:8090"]}])
        (place / DISCOVERY).write_text(content[: 20 if number == 2 else None])
    # What somebody else may put in /tmp.
    odd = {"rs-deep": "[" * 9999, "rs-large": f"[{' ' * 2**21}7]", "rs-number": "5", "rs-pipe": None}
    for name, text in odd.items():
        path = tmp_path / name / "ray" / DISCOVERY
        path.parent.mkdir(parents=True)
        if text is None:
            os.mkfifo(path)
        else:
            path.write_text(text)
    files = discovery_files({"RAY_TMPDIR": str(tmp_path / "own")})
    assert {path.parent for path in files if tmp_path in path.parents} == {
        *places,
        *(tmp_path / name / "ray" for name, text in odd.items() if text is not None),
    }
    targets = ray_targets(path for path in files if tmp_path in path.parents)
    assert targets == [{"labels": {"job": "ray"}, "targets": [f"10.0.0.{number}:8090"]} for number in (0, 1, 3)]
