"""What is shipped for Prometheus and Grafana: valid, consistent, and about metrics that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_configs.monitoring.start_monitoring import (
    ALERTS,
    DASHBOARDS,
    DATASOURCE,
    PROMETHEUS,
    SHIPPED,
    Settings,
    render_files,
)
from trainers.distributed import gauges
from trainers.distributed.gauges import Gauge, error_rate
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import known_metrics

GRAFANA = SHIPPED / "grafana"
GAUGES = {gauge.full_name for gauge in vars(gauges).values() if isinstance(gauge, Gauge)}
DOCS = Path(__file__).parents[3] / "docs" / "monitoring.md"
needs_promtool = pytest.mark.system


def promtool(*arguments: str) -> None:
    """Calls promtool, which has to agree."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def settings(folder: Path, **values: Any) -> Settings:
    """Settings of a machine."""
    given = {
        "prometheus_port": 9999,
        "grafana_port": 3333,
        "service": "https://sr.example.org/api/",
        "token_file": None,
    }
    return Settings(folder, **{**given, "token_file": None, **values})


def alert_rules() -> list[dict[str, Any]]:
    """The shipped rules."""
    content = yaml.safe_load((SHIPPED / ALERTS).read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The shipped dashboard."""
    content: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "rayscribe.json").read_text())
    return content


def panel_queries() -> Iterator[str]:
    """The query of each line of the dashboard."""
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@needs_promtool
def test_promtool_accepts_what_is_shipped() -> None:
    promtool("check", "rules", str(SHIPPED / ALERTS))
    # The token is on the machine of Prometheus only.
    promtool("check", "config", "--syntax-only", str(SHIPPED / PROMETHEUS))


@needs_promtool
def test_promtool_accepts_what_is_rendered(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("rsk_secret")
    for name, content in render_files(settings(tmp_path, token_file=token), (SHIPPED / ALERTS).read_text()).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
        assert "rsk_secret" not in content
    (tmp_path / "targets.json").write_text("[]")
    promtool("check", "config", str(tmp_path / PROMETHEUS))


@needs_promtool
def test_each_alert_fires_in_its_situation_and_not_beside_it(tmp_path: Path) -> None:
    situations = Path(__file__).with_name("alert_situations.yml")
    for path in (situations, SHIPPED / ALERTS):
        shutil.copy(path, tmp_path)
    promtool("test", "rules", str(tmp_path / situations.name))
    text = situations.read_text()
    assert [rule["alert"] for rule in alert_rules() if rule["alert"] not in text] == []


@needs_promtool
def test_every_query_of_the_dashboard_is_a_query(tmp_path: Path) -> None:
    rules = [{"record": f"query:{n}", "expr": query.replace("$run", ".*")} for n, query in enumerate(panel_queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_the_shipped_files_name_one_another() -> None:
    shipped = yaml.safe_load((SHIPPED / PROMETHEUS).read_text())
    assert shipped["rule_files"] == [ALERTS]
    (source,) = yaml.safe_load((GRAFANA / "provisioning" / DATASOURCE).read_text())["datasources"]
    used = re.findall(r'"uid": "([^"]+)"', json.dumps(dashboard()["panels"]))
    assert set(used) == {source["uid"]}


def test_provisioning_has_the_keys_that_grafana_reads() -> None:
    """As its documentation names them: Provision Grafana, sections data sources and dashboards."""
    sources = yaml.safe_load((GRAFANA / "provisioning" / DATASOURCE).read_text())
    assert sources["apiVersion"] == 1
    known = {"name", "uid", "type", "access", "url", "isDefault", "editable", "jsonData", "secureJsonData", "orgId"}
    for source in sources["datasources"]:
        assert {"name", "type", "access", "url"} <= set(source) <= known
        assert (source["type"], source["access"]) == ("prometheus", "proxy")
    boards = yaml.safe_load((GRAFANA / "provisioning" / DASHBOARDS).read_text())
    assert boards["apiVersion"] == 1
    keys = {"name", "folder", "type", "options", "disableDeletion", "allowUiUpdates", "orgId", "updateIntervalSeconds"}
    for provider in boards["providers"]:
        assert {"name", "type", "options"} <= set(provider) <= keys
        assert (provider["type"], set(provider["options"])) == ("file", {"path"})


def test_panels_have_what_grafana_draws_and_do_not_overlap() -> None:
    board = dashboard()
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= set(board)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_each_metric_of_the_workers_is_on_the_dashboard_and_each_that_is_named_exists() -> None:
    queries = [*panel_queries(), *(rule["expr"] for rule in alert_rules())]
    named = {name for query in queries for name in re.findall(r"ray_(rayscribe_\w+)", query)}
    assert named == GAUGES | {error_rate(metric).full_name for metric in ("wer", "cer")}


def test_the_documentation_has_every_metric_and_every_alert() -> None:
    text = DOCS.read_text()
    named = {name for query in panel_queries() for name in re.findall(r"\b(?:ray_)?rayscribe_\w+", query)}
    named = {name.removesuffix("_bucket") for name in named}
    exported = GAUGES | {error_rate(metric).full_name for metric in known_metrics()}
    for name in (*named, *(f"ray_{gauge}" for gauge in exported), *(rule["alert"] for rule in alert_rules())):
        assert f"`{name}`" in text, name


def test_the_service_is_scraped_with_its_scheme_path_and_token(tmp_path: Path) -> None:
    files = render_files(settings(tmp_path, token_file=tmp_path / "token", interval_s=2), "rules")
    ray, service = yaml.safe_load(files[PROMETHEUS])["scrape_configs"]
    assert ray["file_sd_configs"][0]["files"] == [str(tmp_path / "targets.json")]
    assert (service["scheme"], service["metrics_path"]) == ("https", "/api/metrics")
    assert service["static_configs"] == [{"targets": ["sr.example.org"]}]
    assert service["authorization"] == {"credentials_file": str(tmp_path / "token")}
    assert (service["scrape_interval"], service["scrape_timeout"]) == ("2s", "2s")
    assert yaml.safe_load(files[f"provisioning/{DATASOURCE}"])["datasources"][0]["url"] == "http://127.0.0.1:9999"
    boards = yaml.safe_load(files[f"provisioning/{DASHBOARDS}"])["providers"][0]["options"]["path"]
    assert Path(boards, "rayscribe.json").is_file()


def test_a_service_that_is_no_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="localhost:8470 is not a URL: use"):
        render_files(settings(tmp_path, token_file=tmp_path / "token", service="localhost:8470"), "")
