"""The API, tested against its OpenAPI description by schemathesis."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.api.protocol import HEALTH, OPENAPI
from jobs.submission.job_spec import RunConfig, ScriptRunConfig
from tests.jobs.api.backend_harness import BackendHarness
from tests.settings import examples, is_full

# All checks but one: which texts are a cursor, or a whole config, no JSON schema can say.
EXCLUDED_CHECK = "positive_data_acceptance"
MAX_S = 45
# Clients are generated with these names.
OPERATIONS = {
    "submit_run": ("POST", "/v1/runs"),
    "list_runs": ("GET", "/v1/runs"),
    "get_run": ("GET", "/v1/runs/{run_id}"),
    "list_attempts": ("GET", "/v1/runs/{run_id}/attempts"),
    "list_events": ("GET", "/v1/runs/{run_id}/events"),
    "stop_run": ("POST", "/v1/runs/{run_id}/stop"),
    "resume_run": ("POST", "/v1/runs/{run_id}/resume"),
    "read_run_logs": ("GET", "/v1/runs/{run_id}/logs"),
    "has_package": ("HEAD", "/v1/packages/{sha256}"),
    "put_package": ("PUT", "/v1/packages/{sha256}"),
    "get_usage": ("GET", "/v1/usage"),
    "list_queues": ("GET", "/v1/queues"),
    "list_clusters": ("GET", "/v1/clusters"),
    "get_metrics": ("GET", "/metrics"),
    "get_health": ("GET", "/healthz"),
}


@pytest.fixture(scope="module")
def operations(anonymous: httpx.Client) -> dict[tuple[str, str], dict[str, Any]]:
    paths = anonymous.get(OPENAPI).raise_for_status().json()["paths"]
    return {(method.upper(), path): item for path, methods in paths.items() for method, item in methods.items()}


@pytest.mark.integration
def test_every_operation_keeps_to_its_description(harness_and_url: tuple[BackendHarness, str], tmp_path: Path) -> None:
    harness, url = harness_and_url
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", url + OPENAPI, "--checks", "all"]
    command += ["--exclude-checks", EXCLUDED_CHECK, "--header", f"Authorization: Bearer {harness.token}"]
    command += ["--max-examples", str(examples(40)), "--seed", "1", "--continue-on-failure"]
    # Given a time, it draws new requests until that is over.
    command += ["--max-time", str(MAX_S)] if is_full() else []
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=4 * MAX_S, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    assert f"Tested: {len(OPERATIONS)}" in done.stdout


def test_operations_keep_their_names(operations: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert {item["operationId"]: endpoint for endpoint, item in operations.items()} == OPERATIONS


def test_a_run_request_is_described_as_one_config_and_a_package(
    operations: dict[tuple[str, str], dict[str, Any]], anonymous: httpx.Client
) -> None:
    schemas = anonymous.get(OPENAPI).raise_for_status().json()["components"]["schemas"]
    assert set(schemas["RunRequest"]["properties"]) == {"config", "package"}
    kinds = [item["$ref"].rpartition("/")[2] for item in schemas["RunRequest"]["properties"]["config"]["anyOf"]]
    assert kinds == ["RunConfig", "ScriptRunConfig"]
    fields = (RunConfig.model_fields, ScriptRunConfig.model_fields)
    for config, names in zip((schemas[kind] for kind in kinds), fields, strict=True):
        assert set(config["properties"]) == set(names)
        assert config["properties"]["job"]["$ref"] == "#/components/schemas/JobPart"
        assert config["additionalProperties"] is False
    body = operations["POST", "/v1/runs"]["requestBody"]["content"]["application/json"]
    assert RunConfig.model_validate(body["example"]["config"]).run.name == "whisper-sr"


def test_every_operation_and_its_errors_are_explained(operations: dict[tuple[str, str], dict[str, Any]]) -> None:
    for endpoint, item in operations.items():
        assert item["summary"] and len(item["description"]) > len(item["summary"]), endpoint
        assert item["responses"]["default"]["content"]["application/json"]["schema"] == {
            "$ref": "#/components/schemas/ErrorBody"
        }, endpoint


def test_every_operation_but_health_asks_for_a_token(
    operations: dict[tuple[str, str], dict[str, Any]], anonymous: httpx.Client
) -> None:
    for (method, path), item in operations.items():
        url = path.format(run_id="run-queued", sha256="0" * 64) if "{" in path else path
        for headers in ({}, {"Authorization": "Bearer rsk_" + "A" * 43}):
            response = anonymous.request(method, url, headers=headers)
            assert (response.status_code == 200) if path == HEALTH else (response.status_code == 401), (method, path)
        assert ("security" in item) == (path != HEALTH), (method, path)
