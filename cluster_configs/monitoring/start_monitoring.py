"""Starts Prometheus and Grafana on this machine, on loopback, until Ctrl-C: `make monitoring`.

Both come from the machine's packages (Debian: `apt-get install prometheus`; https://grafana.com/docs for Grafana).
Without Grafana, Prometheus runs alone.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from trainers.errors import ConfigError, RayscribeError

SHIPPED = Path(__file__).parent
ALERTS, PROMETHEUS, TARGETS = "alerts.yml", "prometheus.yml", "targets.json"
# Paths below Grafana's folder of provisioning.
DATASOURCE, DASHBOARDS = "datasources/prometheus.yaml", "dashboards/rayscribe.yaml"
# Host in the shipped files, for Prometheus and Grafana on one machine.
LOOPBACK = "127.0.0.1"
# Each Ray head writes this into its temporary folder.
DISCOVERY = "prom_metrics_service_discovery.json"
# Size for ten thousand nodes.
MAX_TARGETS_BYTES = 1 << 20
POLL_S, TARGETS_EVERY_S, STOP_TIMEOUT_S = 0.2, 5.0, 20.0
GRAFANA_HOME = "/usr/share/grafana"


@dataclass(frozen=True)
class Settings:
    """Settings; without `token_file`, the service is not scraped, and `interval_s` is by default the shipped one."""

    folder: Path
    prometheus_port: int
    grafana_port: int
    service: str
    token_file: Path | None
    interval_s: int | None = None

    @property
    def prometheus_url(self) -> str:
        return f"http://{LOOPBACK}:{self.prometheus_port}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs Prometheus and Grafana until a signal, or until one of them ends by itself; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        settings = _settings(parsed)
        _write(settings.folder, render_files(settings, parsed.rules.read_text(encoding="utf-8")))
        _run(settings)
    except (RayscribeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, RayscribeError) else 1
    except KeyboardInterrupt:
        print("stopped", flush=True)
    return 0


def ray_targets(files: Iterable[Path]) -> list[object]:
    """Returns the scrape targets from the discovery files of this machine's Ray heads; skips invalid files.

    In /tmp, any user may have put other content in their place.
    """
    found: list[object] = []
    for path in files:
        try:
            with path.open("rb") as file:
                content = json.loads(file.read(MAX_TARGETS_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        found += content if isinstance(content, list) else []
    return found


def discovery_files(environment: Mapping[str, str]) -> list[Path]:
    """Returns the files in which local heads list their nodes, from the temporary folders of Ray and Rayscribe."""
    # Rayscribe uses /tmp if the paths of sockets would be too long elsewhere.
    parents = {environment.get("RAY_TMPDIR") or tempfile.gettempdir(), tempfile.gettempdir(), "/tmp"}
    folders = [Path("/tmp/ray"), *sorted(path for parent in parents for path in Path(parent).glob("rs-*/ray"))]
    if "RAY_TMPDIR" in environment:
        folders.append(Path(environment["RAY_TMPDIR"]) / "ray")
    return [path for folder in folders if (path := folder / DISCOVERY).is_file()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make monitoring", description=__doc__)
    home = Path(os.environ.get("RAYSCRIBE_HOME", "~/.rayscribe")).expanduser()
    parser.add_argument("--folder", type=Path, default=home / "monitoring", help="data of both; default: %(default)s")
    parser.add_argument("--prometheus-port", type=int, default=9090, help="default: %(default)s")
    parser.add_argument("--grafana-port", type=int, default=3000, help="default: %(default)s")
    parser.add_argument("--rules", type=Path, default=SHIPPED / ALERTS, help="alert rules; default: the shipped ones")
    parser.add_argument("--interval-s", type=int, help="seconds between two scrapes; default: as shipped")
    parser.add_argument(
        "--service",
        default=os.environ.get("RAYSCRIBE_SERVICE", f"http://{LOOPBACK}:8470"),
        help="URL of `rayscribe serve`; default: RAYSCRIBE_SERVICE, else %(default)s",
    )
    token = Path(os.environ.get("RAYSCRIBE_TOKEN_FILE", home / "token"))
    parser.add_argument("--token-file", type=Path, default=token, help="token of the service; default: %(default)s")
    return parser


def _settings(parsed: argparse.Namespace) -> Settings:
    token: Path | None = parsed.token_file.expanduser().resolve()
    if token is not None and not token.is_file():
        print(f"{token}: no such file, so the service is not scraped: give --token-file, or start `rayscribe serve`")
        token = None
    folder = parsed.folder.expanduser().resolve()
    return Settings(folder, parsed.prometheus_port, parsed.grafana_port, parsed.service, token, parsed.interval_s)


def _run(settings: Settings) -> None:
    with ExitStack() as stack:
        running = {"Prometheus": stack.enter_context(_started(_prometheus(settings), settings, os.environ))}
        print(f"Prometheus: {settings.prometheus_url}", flush=True)
        grafana = _grafana(settings)
        if grafana is None:
            print("Grafana is not installed: Prometheus runs alone. See https://grafana.com/docs", flush=True)
        else:
            environment = {**os.environ, **_grafana_variables(settings)}
            running["Grafana"] = stack.enter_context(_started(grafana, settings, environment))
            print(f"Grafana: http://{LOOPBACK}:{settings.grafana_port}/d/rayscribe", flush=True)
        print("Ctrl-C stops it", flush=True)
        written_s = -TARGETS_EVERY_S
        while not (ended := [name for name, process in running.items() if process.poll() is not None]):
            if time.monotonic() - written_s >= TARGETS_EVERY_S:
                content = json.dumps(ray_targets(discovery_files(os.environ)))
                _write(settings.folder, {TARGETS: content})
                written_s = time.monotonic()
            time.sleep(POLL_S)
        raise OSError(f"{ended[0]} ended by itself: see {settings.folder / 'log'}")


def _prometheus(settings: Settings) -> list[str]:
    program = shutil.which("prometheus")
    if program is None:
        raise ConfigError("Prometheus is not installed: `apt-get install prometheus`, or put `prometheus` on PATH")
    _refuse_taken(settings.prometheus_port, "--prometheus-port")
    return [
        program,
        f"--config.file={settings.folder / PROMETHEUS}",
        f"--storage.tsdb.path={settings.folder / 'prometheus'}",
        f"--web.listen-address={LOOPBACK}:{settings.prometheus_port}",
    ]


def _grafana(settings: Settings) -> list[str] | None:
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", f"{GRAFANA_HOME}/bin"))
    program = shutil.which("grafana", path=places)
    if program is None:
        return None
    _refuse_taken(settings.grafana_port, "--grafana-port")
    return [program, "server", f"--homepath={GRAFANA_HOME}"]


def _grafana_variables(settings: Settings) -> dict[str, str]:
    return {
        "GF_SERVER_HTTP_ADDR": LOOPBACK,
        "GF_SERVER_HTTP_PORT": str(settings.grafana_port),
        "GF_PATHS_PROVISIONING": str(settings.folder / "provisioning"),
        "GF_PATHS_DATA": str(settings.folder / "grafana"),
        "GF_PATHS_LOGS": str(settings.folder / "grafana" / "log"),
        # Any user of this machine may view dashboards, but not change them.
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }


def _refuse_taken(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ConfigError(f"port {port} is taken ({error.strerror}): choose another with {option}") from None


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes each file atomically: Prometheus reads them while they are replaced."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f".{path.name}.new")
        new.write_text(content, encoding="utf-8")
        new.replace(path)


@contextmanager
def _started(
    command: Sequence[str], settings: Settings, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a program during the block, then ends it with SIGTERM, on which Prometheus and Grafana write their data."""
    log = settings.folder / "log"
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with log.open("ab") as output:
        # In a session of its own, so that only this process gets a Ctrl-C of the terminal, and ends both in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def render_files(settings: Settings, alerts: str) -> Mapping[str, str]:
    """Returns the files for the folder, by name; raises ConfigError if the service's URL has no host."""
    datasource, dashboards = (_shipped(f"grafana/provisioning/{name}") for name in (DATASOURCE, DASHBOARDS))
    datasource["datasources"][0]["url"] = settings.prometheus_url
    dashboards["providers"][0]["options"]["path"] = str(SHIPPED / "grafana" / "dashboards")
    return {
        PROMETHEUS: yaml.safe_dump(_scrapes(settings), sort_keys=False),
        ALERTS: alerts,
        f"provisioning/{DATASOURCE}": yaml.safe_dump(datasource, sort_keys=False),
        f"provisioning/{DASHBOARDS}": yaml.safe_dump(dashboards, sort_keys=False),
    }


def _scrapes(settings: Settings) -> dict[str, Any]:
    content = _shipped(PROMETHEUS)
    ray, service = content["scrape_configs"]
    ray["file_sd_configs"][0]["files"] = [str(settings.folder / TARGETS)]
    if settings.interval_s is not None:
        content["global"] = dict.fromkeys(content["global"], f"{settings.interval_s}s")
        service |= {"scrape_interval": f"{settings.interval_s}s", "scrape_timeout": f"{settings.interval_s}s"}
    if settings.token_file is None:
        content["scrape_configs"] = [ray]
        return content
    url = urlsplit(settings.service)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ConfigError(f"RAYSCRIBE_SERVICE: {settings.service} is not a URL: use e.g. http://127.0.0.1:8470")
    service["authorization"]["credentials_file"] = str(settings.token_file)
    service["scheme"], service["metrics_path"] = url.scheme, f"{url.path.rstrip('/')}/metrics"
    service["static_configs"][0]["targets"] = [url.netloc]
    return content


def _shipped(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((SHIPPED / name).read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    # SIGTERM ends it like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
