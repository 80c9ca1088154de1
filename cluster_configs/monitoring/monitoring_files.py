"""The shipped files of Prometheus and Grafana, with a machine's own paths, ports and addresses. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from trainers.errors import ConfigError

SHIPPED = Path(__file__).parent
ALERTS, PROMETHEUS, TARGETS = "alerts.yml", "prometheus.yml", "targets.json"
# Below Grafana's folder of provisioning.
DATASOURCE, DASHBOARDS = "datasources/prometheus.yaml", "dashboards/rayscribe.yaml"
# Of the shipped files, where Prometheus and Grafana run on one machine.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Settings:
    """What differs from machine to machine.

    Attributes:
        folder: Holds what is written for this machine, and the data of both programs.
        token_file: Holds the service's token. None: the service is not scraped.
        interval_s: Seconds between two scrapes. None: as shipped.
    """

    folder: Path
    prometheus_port: int
    grafana_port: int
    service: str
    token_file: Path | None
    interval_s: int | None = None

    @property
    def prometheus_url(self) -> str:
        return f"http://{LOOPBACK}:{self.prometheus_port}"


def render_files(settings: Settings, alerts: str) -> Mapping[str, str]:
    """What is written into the folder, by name.

    Raises:
        ConfigError: the service's URL has no host.
    """
    datasource, dashboards = (_shipped(f"grafana/provisioning/{name}") for name in (DATASOURCE, DASHBOARDS))
    datasource["datasources"][0]["url"] = settings.prometheus_url
    dashboards["providers"][0]["options"]["path"] = str(SHIPPED / "grafana" / "dashboards")
    return {
        PROMETHEUS: yaml.safe_dump(_prometheus(settings), sort_keys=False),
        ALERTS: alerts,
        f"provisioning/{DATASOURCE}": yaml.safe_dump(datasource, sort_keys=False),
        f"provisioning/{DASHBOARDS}": yaml.safe_dump(dashboards, sort_keys=False),
    }


def _prometheus(settings: Settings) -> dict[str, Any]:
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
        raise ConfigError(f"RAYSCRIBE_SERVICE: {settings.service} is no URL: set it to one like http://127.0.0.1:8470")
    service["authorization"]["credentials_file"] = str(settings.token_file)
    service["scheme"], service["metrics_path"] = url.scheme, f"{url.path.rstrip('/')}/metrics"
    service["static_configs"][0]["targets"] = [url.netloc]
    return content


def _shipped(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((SHIPPED / name).read_text(encoding="utf-8"))
    return content
