"""Preflight of a real Ray: its dashboard, its resources, and a probe job on its nodes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.clusters.registry import Clusters
from jobs.preflight.runner import run_preflight
from jobs.submission.job_spec import load_spec
from tests.integration.conftest import LOGICAL_CPUS
from tests.integration.driver_process import RayHead
from tests.integration.forked_process import REPOSITORY
from tests.jobs.preflight.contexts import NOW
from tests.trainers.inspection.checking import sound_corpus
from tests.trainers.synthetic import content
from trainers.findings import Finding


@pytest.fixture(scope="module")
def clusters() -> Clusters:
    return Clusters()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(content(sound_corpus(tmp_path))))
    return path


def preflight(clusters: Clusters, head: RayHead, recipe: Path, *sets: str, **options: Any) -> dict[str, list[Finding]]:
    """Findings by check."""
    spec = load_spec(recipe, sets, here=REPOSITORY, now=NOW)
    found: dict[str, list[Finding]] = {}
    deep = options.get("deep", False)
    for finding in run_preflight(spec, clusters=clusters, address=head.dashboard, deep=deep):
        found.setdefault(finding.check, []).append(finding)
    return found


def errors(found: dict[str, list[Finding]]) -> dict[str, str]:
    return {check: item.text for check, items in found.items() for item in items if item.level == "error"}


def test_a_sound_recipe_is_found_sound_from_the_nodes_too(clusters: Clusters, ray_head: RayHead, recipe: Path) -> None:
    found = preflight(clusters, ray_head, recipe, deep=True)
    levels = {item.level for items in found.values() for item in items}
    assert levels == {"ok"}, [item for items in found.values() for item in items if item.level != "ok"]
    nodes = {"probe", "node_model", "node_storage", "node_data", "node_secrets", "node_torch_build", "node_versions"}
    assert nodes | {"cluster", "open_dashboard", "versions", "gang"} <= set(found)
    assert "mine" in found["probe"][0].text
    assert not (recipe.parent / "runs" / "mine").exists(), "a probe leaves no run folder"


def test_what_only_a_node_can_tell_is_found_by_the_probe(clusters: Clusters, ray_head: RayHead, recipe: Path) -> None:
    secrets = "{HF_TOKEN: {file: /nowhere/hf}, WANDB_API_KEY: {env: NO_SUCH_KEY_ON_A_NODE}}"
    found = preflight(clusters, ray_head, recipe, f"job.runtime_env.secrets={secrets}", deep=True)
    errors_found = errors(found)
    assert "job.runtime_env.secrets.HF_TOKEN refers to /nowhere/hf, which cannot be read on this node" in str(
        errors_found
    )
    assert "Traceback" not in str(found)


def test_a_gang_that_never_fits_is_found_with_the_cluster_s_own_numbers(
    clusters: Clusters, ray_head: RayHead, recipe: Path
) -> None:
    errors_found = errors(preflight(clusters, ray_head, recipe, f"scaling.num_workers={LOGICAL_CPUS + 1}"))
    assert f"{LOGICAL_CPUS + 1} × 1 CPU" in errors_found["gang"]
    errors_found = errors(preflight(clusters, ray_head, recipe, f"scaling.num_workers={LOGICAL_CPUS}"))
    assert "+ 1 CPU for Ray Data" in errors_found["gang"]
    errors_found = errors(preflight(clusters, ray_head, recipe, "scaling.use_gpu=true"))
    assert "1 GPU" in errors_found["gang"]


@pytest.mark.long
def test_packages_that_cannot_be_installed_are_found_before_the_run(
    clusters: Clusters, ray_head: RayHead, recipe: Path
) -> None:
    packages = "{pip: [no-such-package-of-rayscribe==1.0], index_url: file:///nowhere, install: script}"
    found = preflight(clusters, ray_head, recipe, f"job.runtime_env={packages}", deep=True)
    assert "no-such-package-of-rayscribe" in errors(found)["probe"]
    assert {item.level for item in found["nodes"]} == {"skipped"}
