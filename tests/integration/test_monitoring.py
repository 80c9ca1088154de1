"""A real Prometheus, started as `make monitoring` does, watches a real training and a real service."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster_configs.monitoring.start_monitoring import ALERTS, SHIPPED
from jobs.api.server.app import make_app
from jobs.clusters.ray_jobs import RayJobs
from jobs.model import RunState
from tests.cluster_configs.monitoring.test_monitoring_files import panel_queries
from tests.integration.driver_process import RayHead, Run
from tests.integration.test_job import TINY, run_job
from tests.jobs.api.backend_harness import BackendHarness, open_harness, served
from trainers.distributed.local_ray import free_ports

pytestmark = pytest.mark.system
TIMEOUT_S = 300.0
# The shipped rules are for hours. Ray exports every 10 s, so that a rank which makes steps looks up to 10 s old.
SHORTER = {"> 1800": "> 25", "for: 15m": "for: 0s", "for: 5m": "for: 0s", "for: 1m": "for: 0s", "< 0.1\n": "< 1\n"}
GPU = "ray_node_gpus_utilization"


@dataclass(frozen=True)
class Monitoring:
    """What watches.

    Attributes:
        url: Where Prometheus is asked.
        harness: The ledger of the service that it scrapes.
        log: What Prometheus printed.
    """

    url: str
    harness: BackendHarness
    log: Path

    def query(self, query: str) -> list[dict[str, str]]:
        """The labels of each series that a query gives now."""
        try:
            answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=30)
        except httpx.TransportError:
            return []  # it starts
        assert answer.status_code in (200, 503), answer.text
        return [item["metric"] for item in answer.json()["data"]["result"]] if answer.status_code == 200 else []

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Waits for a condition."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < end, f"no {what} in {TIMEOUT_S:g} s:\n{self.log.read_text()[-2000:]}"
            time.sleep(0.5)

    def fires(self, alert: str, **labels: str) -> bool:
        """Whether an alert fires now."""
        chosen = "".join(f', {name}="{value}"' for name, value in labels.items())
        return bool(self.query(f'ALERTS{{alertname="{alert}", alertstate="firing"{chosen}}}'))


@pytest.fixture(scope="module")
def monitoring(ray_head: RayHead, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    """Prometheus on the session's Ray, and on a service whose cluster is down."""
    folder = tmp_path_factory.mktemp("monitoring")
    rules, text = folder / "shorter.yml", (SHIPPED / ALERTS).read_text()
    for shipped, shorter in SHORTER.items():
        assert shipped in text
        text = text.replace(shipped, shorter)
    rules.write_text(text)
    with open_harness(folder) as harness, served(make_app(harness.backend)) as service:
        harness.fill()
        (folder / "token").write_text(harness.token)
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "cluster_configs.monitoring.start_monitoring", f"--folder={folder / 'data'}"]
        command += [f"--prometheus-port={port}", f"--rules={rules}", f"--token-file={folder / 'token'}"]
        # A scrape must answer within the interval, which an agent on a busy machine needs longer than a second for.
        # Other Rays of this machine are looked for in its temporary folder.
        environment = {**os.environ, "TMPDIR": str(folder)}
        process = subprocess.Popen([*command, f"--service={service}", "--interval-s=3"], env=environment)
        try:
            yield Monitoring(f"http://127.0.0.1:{port}", harness, folder / "data" / "log")
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.mark.long
def test_each_query_of_the_dashboard_returns_data_and_series_end_with_their_attempt(
    monitoring: Monitoring, ray_head: RayHead, tmp_path: Path
) -> None:
    monitoring.wait_for(lambda: monitoring.query('up{job="ray"} == 1'), "scrape of Ray")
    sets = [item for item in TINY if not item.startswith("run.name")]
    sets += ["run.name=on-the-dashboard", f"run.storage_path={tmp_path}", "scaling.num_workers=2"]
    waiting = {query.replace("$run", "on-the-dashboard") for query in panel_queries() if GPU not in query}
    waiting |= {f'ray_rayscribe_wer_ratio{{run="on-the-dashboard", split="{name}"}}' for name in ("validation", "test")}
    parts = ("data", "compute", "communication", "checkpoint")
    waiting |= {f'ray_rayscribe_train_step_seconds{{run="on-the-dashboard", part="{part}"}}' for part in parts}

    def all_answered() -> bool:
        waiting.difference_update([query for query in waiting if monitoring.query(query)])
        return not waiting

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(run_job, RayJobs(ray_head.dashboard), "on-the-dashboard", sets)
        monitoring.wait_for(lambda: all_answered() or job.done(), "end of the training")
        end, output = job.result()
    assert end.status == "SUCCEEDED", output
    # The last that a worker has shown is exported when it ends.
    monitoring.wait_for(all_answered, f"data of {waiting}")
    monitoring.wait_for(lambda: not monitoring.query('{run="on-the-dashboard"}'), "end of the attempt's series")


def test_a_queue_that_does_not_move_and_failures_above_the_rate_fire(monitoring: Monitoring) -> None:
    monitoring.harness.add("nobody-takes-it", queue="small")
    monitoring.wait_for(lambda: monitoring.fires("QueueNotMoving", queue="small"), "alert of the queue")
    assert not monitoring.fires("QueueNotMoving", queue="default"), "runs of it hold their gang"
    assert not monitoring.fires("RetriesAboveRate")
    now_s = time.time()
    for number in range(9):
        monitoring.harness.add_in_state(f"lost-{number}", RunState.RETRYING, submitted_s=now_s, queued_s=now_s)
    monitoring.wait_for(lambda: monitoring.fires("RetriesAboveRate", queue="default"), "alert of the failures")


def test_a_full_disk_fires_for_each_node(monitoring: Monitoring) -> None:
    """Each disk is taken for nearly full here: the rule's query finds the nodes of a real Ray."""
    monitoring.wait_for(lambda: monitoring.fires("NodeDiskNearlyFull"), "alert of the disk")


@pytest.mark.long
def test_a_frozen_worker_makes_its_run_fire(
    monitoring: Monitoring, ray_head: RayHead, training_tree: Path, tmp_path: Path
) -> None:
    sets = [f"training.{name}=1000000" for name in ("max_steps", "save_steps", "eval_steps")]
    sets += ["training.logging_steps=100"]
    run = Run(ray_head, "frozen", str(tmp_path), training_tree / "recipe.yaml", sets, tmp_path / "log")
    run.start()
    monitoring.wait_for(lambda: monitoring.query('ray_rayscribe_train_loss{run="frozen"}'), "line of the log")
    monitoring.wait_for(lambda: not monitoring.fires("RunStalled", run="frozen"), "step")
    worker = max(ray_head.training_workers(), key=lambda process: process.pid)
    worker.suspend()
    try:
        monitoring.wait_for(lambda: monitoring.fires("RunStalled", run="frozen"), "alert of the run")
    finally:
        worker.resume()
    monitoring.wait_for(lambda: not monitoring.fires("RunStalled", run="frozen"), "end of the alert")
    run.kill_driver()
