"""A provider of another distribution: its specs are read and rendered, its files checked, its notices read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from cluster_configs.providers.known_providers import PROVIDERS
from tests.test_architecture import ROOT

VALIDATION = Path(__file__).parent.parent / "validation"

MODULE = '''
from typing import Any, Literal

from cluster_configs.providers.provider import Notice
from cluster_configs.providers.provider import CloudPart, Provider
from cluster_configs.validation.cluster_file import RAY_UP, Rule, Violation


class MyPart(CloudPart):
    """Machines of a cloud of our own."""

    title = "My Cloud"
    provider: Literal["mycloud"]
    site: str

    def provider_section(self) -> dict[str, Any]:
        return {"type": "external", "module": "mycloud.Nodes", "site": self.site}

    def node_config(self, instance: str, pool: Any) -> dict[str, Any]:
        return {"machine": instance}


class Service:
    name = "MyCloud"

    def __init__(self, url: str) -> None:
        self.url = url

    def is_here(self) -> bool:
        return True

    def notice(self, now_s: float) -> Notice | None:
        return Notice("MyCloud: maintenance", now_s + 60)


def check(file: Any) -> Any:
    for node in [file.document.get("provider", "site")]:
        if node.text == "old":
            yield Violation(node.place, node.text, "name another site")


RULES = (Rule("my-sites", RAY_UP, check),)
LABELS = {"my.cloud/market": "spot"}
PROVIDER = Provider(MyPart, rules=RULES, metadata_service=Service, module="mycloud.Nodes", spot_labels=LABELS)
'''
PROGRAM = """
import json, sys
from cluster_configs.rendering.render import render
from cluster_configs.rendering.targets import Target
from cluster_configs.rendering.cluster_spec import build_cluster_spec
from cluster_configs.validation.validator import validate
from trainers.distributed.preemption_agent import CLOUDS

spec = build_cluster_spec(json.loads(sys.argv[1]), origin="my.yaml")
text = render(spec, Target.RAY_UP)
broken = validate(text.replace("north", "old").encode()).broken
on_spot = validate(sys.argv[2].encode()).broken
print(json.dumps({"text": text, "clouds": sorted(CLOUDS), "broken": [rule for rule, _ in broken],
                  "on_spot": [rule for rule, _ in on_spot]}))
"""
SPEC = {
    "name": "speech",
    "image": "registry.example.org/rayscribe:1",
    "head": {"instance": "small"},
    "pools": {"spot": {"instance": "big", "spot": True}},
    "storage": "s3://bucket/runs",
    "ray_up": {"provider": "mycloud", "site": "north"},
}


def test_a_provider_of_another_distribution_is_rendered_and_gives_notices(tmp_path: Path) -> None:
    (tmp_path / "mycloud.py").write_text(MODULE)
    info = tmp_path / "mycloud-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mycloud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rayscribe.providers]\nmycloud = mycloud:PROVIDER\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    job = (VALIDATION / "broken/driver-not-on-spot-affinity.yaml").read_text()
    job = job.replace("karpenter.sh/capacity-type", "my.cloud/market")
    command = [sys.executable, "-c", PROGRAM, json.dumps(SPEC), job]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    file = yaml.safe_load(answer["text"])
    assert file["provider"] == {"type": "external", "module": "mycloud.Nodes", "site": "north"}
    assert file["available_node_types"]["spot"]["node_config"] == {"machine": "big"}
    assert "preemption_agent --provider mycloud" in file["worker_start_ray_commands"][-1]
    assert answer["text"].startswith("# My Cloud: a head on demand")
    assert answer["broken"] == ["my-sites"]
    assert answer["on_spot"] == ["driver-not-on-spot"]
    assert set(answer["clouds"]) - {name for name, one in PROVIDERS.items() if one.metadata_service} == {"mycloud"}
