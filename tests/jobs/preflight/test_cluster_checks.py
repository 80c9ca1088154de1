import platform
from pathlib import Path
from typing import Any

import pytest
import ray

from jobs.clusters import ray_private
from jobs.clusters.ray_jobs import RayJobs
from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.preflight.client_checks import OF_CLUSTER
from jobs.preflight.context import external_url
from jobs.preflight.runner import run_preflight
from tests.jobs.preflight.contexts import (
    VERSIONS,
    clusters_of,
    context_of,
    dashboard_at,
    named,
    single_finding,
)
from trainers.findings import run_check

CLUSTER = named(OF_CLUSTER, "cluster")
OPEN_DASHBOARD = named(OF_CLUSTER, "open_dashboard")
VERSION = named(OF_CLUSTER, "versions")
GANG = named(OF_CLUSTER, "gang")
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token here, as Ray would send it."""
    # Ray reads its own environment once in a process.
    headers = {"Authorization": "Bearer the-right-one"}
    monkeypatch.setattr(ray_private, "get_auth_headers_if_auth_enabled", lambda _: headers)


def test_a_cluster_that_answers_is_sound_in_every_way(tmp_path: Path) -> None:
    with dashboard_at() as dashboard:
        context = context_of(tmp_path, address=dashboard.url)
        findings = [each for check in OF_CLUSTER for each in run_check(check, context)]
    assert {finding.level for finding in findings} == {"ok"}, findings


class TestCluster:
    def test_one_that_is_down_delays_a_run_and_is_an_error_to_a_question_about_it(self, tmp_path: Path) -> None:
        quick, deep = (context_of(tmp_path, address=NOBODY, deep=deep) for deep in (False, True))
        assert single_finding(CLUSTER, quick).level == "warning"
        finding = single_finding(CLUSTER, deep)
        assert finding.level == "error"
        assert f"{NOBODY} does not respond (ConnectionError): check the address" in finding.text
        others = [each for check in OF_CLUSTER[1:] for each in run_check(check, quick)]
        assert {finding.level for finding in others} == {"skipped"}

    def test_one_that_asks_for_a_token(self, tmp_path: Path) -> None:
        with dashboard_at() as dashboard:
            dashboard.token = "the-right-one"
            finding = single_finding(CLUSTER, context_of(tmp_path, address=dashboard.url))
        assert finding.level == "error"
        assert f"{dashboard.url} requires a token (401): set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in finding.text

    def test_one_that_refuses_our_token_does_not_see_it_in_the_message(self, tmp_path: Path, token: None) -> None:
        with dashboard_at() as dashboard:
            dashboard.token = "another"
            finding = single_finding(CLUSTER, context_of(tmp_path, address=dashboard.url))
        assert finding.level == "error"
        assert "rejects the token of this machine (403)" in finding.text
        assert "the-right-one" not in finding.text

    def test_one_that_takes_our_token(self, tmp_path: Path, token: None) -> None:
        with dashboard_at() as dashboard:
            dashboard.token = "the-right-one"
            context = context_of(tmp_path, address=dashboard.url)
            assert single_finding(CLUSTER, context).level == "ok"
            assert single_finding(OPEN_DASHBOARD, context).text == f"{dashboard.url} requires a token"

    def test_something_that_is_no_dashboard(self, tmp_path: Path) -> None:
        with dashboard_at() as dashboard:
            dashboard.broken = True
            finding = single_finding(CLUSTER, context_of(tmp_path, address=dashboard.url))
        assert finding.level == "error"
        assert "responds with 200, but not as a Ray dashboard" in finding.text


class TestOpenDashboard:
    def test_one_on_loopback_is_its_own_machine_s(self, tmp_path: Path) -> None:
        with dashboard_at("127.0.0.1") as dashboard:
            finding = single_finding(OPEN_DASHBOARD, context_of(tmp_path, address=dashboard.url))
        assert finding.level == "ok"
        assert "accepts connections from its own machine only" in finding.text

    def test_one_on_all_interfaces_is_found_through_loopback_too(self, tmp_path: Path) -> None:
        with dashboard_at("0.0.0.0") as dashboard:
            outside = external_url(dashboard.url)
            assert outside is not None, "this machine has no address but loopback"
            for address in (dashboard.url, outside):
                finding = single_finding(OPEN_DASHBOARD, context_of(tmp_path, address=address))
                assert finding.level == "warning"
                assert f"{outside} lets anybody who can connect run code on the cluster" in finding.text
                assert "RAY_AUTH_MODE=token" in finding.text


class TestVersions:
    @pytest.mark.parametrize(
        ("changed", "level", "words"),
        [
            ({}, "ok", f"Ray {ray.__version__}"),
            ({"rayVersion": "2.9.3"}, "error", f"Ray is 2.9.3 on the cluster and {ray.__version__} on this machine"),
            ({"rayVersion": f"{ray.__version__}.post1"}, "warning", "install the same on both"),
            ({"pythonVersion": "3.9.18"}, "error", "Python is 3.9.18 on the cluster, and Rayscribe needs 3.11 to 3.13"),
        ],
    )
    def test_the_cluster_s_own_are_compared(
        self, tmp_path: Path, changed: dict[str, Any], level: str, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "python_version", lambda: "3.11.4")
        with dashboard_at() as dashboard:
            dashboard.data = {**VERSIONS, **changed}
            finding = single_finding(VERSION, context_of(tmp_path, address=dashboard.url))
        assert (finding.level, words in finding.text) == (level, True), finding

    def test_another_python_may_not_take_our_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
        with dashboard_at() as dashboard:
            finding = single_finding(VERSION, context_of(tmp_path, address=dashboard.url))
        assert finding.level == "warning"
        assert "Python is 3.11.9 on the cluster and 3.12.1 on this machine" in finding.text


class TestResources:
    def test_more_gpus_than_the_cluster_can_ever_have(self, tmp_path: Path) -> None:
        with dashboard_at() as dashboard:
            clusters = clusters_of({"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}, grows_to={"GPU": 3.0})
            changes = {"scaling.num_workers": 4, "scaling.use_gpu": True}
            finding = single_finding(GANG, context_of(tmp_path, changes, address=dashboard.url, clusters=clusters))
        assert finding.level == "error"
        assert "4 GPU" in finding.text
        assert dashboard.url in finding.text

    def test_what_the_autoscaler_can_add_counts(self, tmp_path: Path) -> None:
        with dashboard_at() as dashboard:
            clusters = clusters_of({"CPU": 8.0}, grows_to={"CPU": 64.0, "GPU": 4.0})
            changes = {"scaling.num_workers": 4, "scaling.use_gpu": True}
            assert (
                single_finding(GANG, context_of(tmp_path, changes, address=dashboard.url, clusters=clusters)).level
                == "ok"
            )

    @pytest.mark.parametrize(
        ("changes", "level"),
        [
            ({}, "warning"),
            ({"scaling.use_gpu": True}, "ok"),
            ({"scaling.use_gpu": False}, "ok"),
            ({"scaling.accelerator": "cpu"}, "ok"),
        ],
    )
    def test_gpus_that_nobody_has_asked_for_are_named_with_the_option(
        self, tmp_path: Path, changes: dict[str, Any], level: str
    ) -> None:
        with dashboard_at() as dashboard:
            clusters = clusters_of({"CPU": 8.0, "GPU": 2.0})
            finding = single_finding(GANG, context_of(tmp_path, changes, address=dashboard.url, clusters=clusters))
        assert finding.level == level
        assert (level == "ok") or "no worker requests a GPU, but the cluster has 2: set" in finding.text
        assert (level == "ok") or "(--use-gpu of rayscribe launch), or scaling.accelerator: cpu" in finding.text

    def test_workers_that_leave_no_cpu_for_ray_data(self, tmp_path: Path) -> None:
        with dashboard_at() as dashboard:
            context = context_of(tmp_path, {"scaling.num_workers": 8}, address=dashboard.url)
            finding = single_finding(GANG, context)
        assert finding.level == "error"
        assert "scaling.num_workers 8 × 1 CPU + 1 CPU for Ray Data = 9 CPU" in finding.text
        assert "set scaling.num_workers to at most 7" in finding.text

    def test_an_elastic_gang_is_too_large_by_its_most_workers(self, tmp_path: Path) -> None:
        changes = {"scaling.num_workers": {"min": 2, "max": 9}, "training.global_batch_size": 18}
        with dashboard_at() as dashboard:
            finding = single_finding(GANG, context_of(tmp_path, changes, address=dashboard.url))
        assert "scaling.num_workers.max 9 × 1 CPU + 1 CPU for Ray Data = 10 CPU" in finding.text
        assert "set scaling.num_workers.max to at most 7 (min 2 fits)" in finding.text


def test_without_a_recipe_only_the_cluster_is_looked_at() -> None:
    with dashboard_at() as dashboard:
        findings = run_preflight(None, clusters=clusters_of({"CPU": 8.0}), address=dashboard.url, deep=True)
    assert [finding.check for finding in findings] == ["cluster", "open_dashboard", "versions"]


def test_without_a_cluster_its_checks_are_skipped(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    findings = [each for check in OF_CLUSTER for each in run_check(check, context)]
    assert {finding.level for finding in findings} == {"skipped"}
    assert findings[0].text.endswith("give --address http://<head>:8265, or start one: rayscribe cluster up --local")


def test_of_a_cluster_that_does_not_tell_its_resources_nothing_is_claimed(tmp_path: Path) -> None:
    def refuse(address: str) -> RayJobs:
        raise ClusterError(f"{address}: the state API is off")

    with dashboard_at() as dashboard:
        context = context_of(tmp_path, address=dashboard.url, clusters=Clusters(connect=refuse))
        finding = single_finding(GANG, context)
        assert (finding.level, finding.text) == ("skipped", "the cluster does not report its resources")
