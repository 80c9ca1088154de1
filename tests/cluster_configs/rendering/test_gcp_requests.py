"""gcp.yaml through Ray's own provider: the requests that it sends to Google, as golden files.

Covered: Ray's bootstrap of the file and instances.insert for the head and each pool, built by Ray and Google's client
from Google's own description of the API, up to the transport, which is a stub that records and answers. Not covered:
whether Google accepts them, and what runs on the instances.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httplib2
import pytest
import yaml
from ray.autoscaler._private.gcp.config import bootstrap_gcp
from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider
from ray.autoscaler._private.util import prepare_config

from tests.test_architecture import ROOT

GOLDEN = Path(__file__).parent / "golden" / "gcp_instances.json"
PROJECT = "my-project"
ANSWERS = {
    f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}?": {"projectId": PROJECT, "lifecycleState": "ACTIVE"},
    ":getIamPolicy": {"bindings": [], "etag": "1"},
    "iam.googleapis.com/": {"projectId": PROJECT, "email": f"ray-autoscaler-sa-v1@{PROJECT}.iam.gserviceaccount.com"},
    f"compute/v1/projects/{PROJECT}?": {"name": PROJECT, "commonInstanceMetadata": {"fingerprint": "1"}},
}


class Google:
    """The transport: what was sent, and an answer of the right form."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []

    def request(self, uri: str, method: str = "GET", body: Any = None, **_: Any) -> tuple[httplib2.Response, bytes]:
        self.sent.append((method, uri, json.loads(body) if body else None))
        answer: Any = {"name": "operation", "status": "DONE"}
        if "/operations/" not in uri:
            answer = next((content for part, content in ANSWERS.items() if part in uri), answer)
        return httplib2.Response({"status": "200", "content-type": "application/json"}), json.dumps(answer).encode()


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Google]:
    found = Google()

    def request(_: Any, uri: str, method: str = "GET", body: Any = None, **other: Any) -> Any:
        return found.request(uri, method, body, **other)

    monkeypatch.setattr(httplib2.Http, "request", request)
    # Ray writes the private key that it makes to ~/.ssh.
    monkeypatch.setenv("HOME", str(tmp_path))
    yield found


def test_what_google_is_asked_for(google: Google) -> None:
    file = yaml.safe_load((ROOT / "cluster_configs" / "gcp.yaml").read_text())
    file["provider"]["gcp_credentials"] = {"type": "credentials_token", "credentials": "a-token"}
    config = bootstrap_gcp(prepare_config(file))
    provider = GCPNodeProvider(config["provider"], config["cluster_name"])
    asked: dict[str, Any] = {}
    for name, node_type in config["available_node_types"].items():
        kind = "head" if name == config["head_node_type"] else "worker"
        tags = {"ray-node-name": f"ray-speech-{kind}", "ray-node-type": kind, "ray-user-node-type": name}
        provider.create_node(node_type["node_config"], tags, 1)
        method, uri, asked[name] = next(sent for sent in reversed(google.sent) if sent[0] == "POST")
        assert (method, uri.partition("?")[0].rpartition("/compute/v1/")[2]) == (
            "POST",
            "projects/my-project/zones/us-central1-a/instances",
        )
        asked[name]["name"] = re.sub(r"-[0-9a-f]{8}-", "-XXXXXXXX-", asked[name]["name"])
    text = json.dumps(asked, indent=1, sort_keys=True) + "\n"
    if os.environ.get("REGENERATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert {name for name, body in asked.items() if body.get("scheduling", {}).get("provisioningModel") == "SPOT"} == {
        "spot"
    }
    # Nothing is opened: the subnetwork's firewall is the user's.
    assert not [uri for _, uri, _ in google.sent if "firewall" in uri]
