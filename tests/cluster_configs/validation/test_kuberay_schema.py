"""The schema that we ship says of a RayCluster or RayJob what KubeRay's own definition says, and refuses more.

Covered, by `openAPIV3Schema` of version v1: which fields there are at every depth, pod templates included, their types,
which are required, choices, least values, patterns, least lengths. As `kubectl apply` does, and unlike the definition
alone, an unknown field is refused. Not covered, since only an API server decides it: rules in CEL
(`x-kubernetes-validations`), number formats, uniqueness of names in lists, defaults, `status`, what KubeRay's operator
itself refuses, and whether what a field names exists. Documents that are
not KubeRay's need `apiVersion` and `kind`.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from cluster_configs.validation.schema_rules import KUBERAY_SCHEMA, kuberay_schema
from tests.cluster_configs.validation import custom_resources
from tests.settings import examples, setting

HERE = Path(__file__).parent
JOB = [*yaml.safe_load_all((HERE / "good" / "rayjob.yaml").read_text(encoding="utf-8"))][-1]
CLUSTER = {**JOB, "kind": "RayCluster", "spec": JOB["spec"]["rayClusterSpec"]}
MUTATIONS = 300


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    """KubeRay's own; the test skips where they are absent."""
    if not custom_resources.schemas_folder().is_dir():
        pytest.skip(f"no schemas at {custom_resources.schemas_folder()}: they lie next to RAYSCRIBE_TEST_DATA")
    return {kind: custom_resources.custom_resource(kind) for kind in custom_resources.KINDS}


def ours(kind: str) -> Draft202012Validator:
    return Draft202012Validator({**kuberay_schema()[kind], "$defs": kuberay_schema()["$defs"]})


@pytest.mark.integration
def test_the_shipped_schema_is_made_from_kuberays(definitions: Mapping[str, Any]) -> None:
    text = custom_resources.shipped_schema(definitions)
    if setting("REGENERATE_SCHEMA", ""):
        KUBERAY_SCHEMA.write_text(text, encoding="utf-8")
    assert text == KUBERAY_SCHEMA.read_text(encoding="utf-8")


def test_the_shipped_schema_is_small_and_has_no_text_of_others() -> None:
    assert KUBERAY_SCHEMA.stat().st_size < 50_000
    assert '"description"' not in KUBERAY_SCHEMA.read_text(encoding="utf-8")


@pytest.mark.parametrize("document", [JOB, CLUSTER], ids=lambda document: document["kind"])
@pytest.mark.integration
def test_good_documents_pass_both(document: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    kind = document["kind"]
    assert [*Draft202012Validator(definitions[kind]).iter_errors(document)] == []
    assert [*ours(kind).iter_errors(document)] == []


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document below its metadata."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def test_what_kuberay_refuses_is_refused_and_an_unknown_field_too(definitions: Mapping[str, Any]) -> None:
    """A document changed at random: both agree, but for fields that do not exist."""
    theirs = {kind: Draft202012Validator(definition) for kind, definition in definitions.items()}
    changes: list[Callable[[random.Random], Any]] = [
        lambda draw: "text",
        lambda draw: 7,
        lambda draw: -1,
        lambda draw: True,
        lambda draw: [],
        lambda draw: {},
        lambda draw: {"name": "x"},
        lambda draw: [{"name": "x"}],
        lambda draw: "9Xi",
    ]
    draw, refused = random.Random(5), 0
    for _ in range(examples(MUTATIONS)):
        document = deepcopy(draw.choice([JOB, CLUSTER]))
        path = draw.choice([path for path in places(document) if path[0] == "spec"])
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if draw.random() < 0.2:
            del holder[path[-1]]
        else:
            holder[path[-1]] = draw.choice(changes)(draw)
        validity = theirs[document["kind"]].is_valid(document)
        errors = [*ours(document["kind"]).iter_errors(document)]
        known = [error for error in errors if error.validator != "additionalProperties"]
        assert validity == (not known), (path, [error.message for error in known])
        refused += not validity
    assert refused


@pytest.mark.parametrize(
    ("path", "field"),
    [(("spec",), "entryPoint"), (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec"), "nodeSelectors")],
)
def test_an_unknown_field_is_refused_at_any_depth(path: tuple[str, ...], field: str) -> None:
    document = deepcopy(JOB)
    holder = document
    for key in path:
        holder = holder[key]
    holder[field] = {}
    assert [error.validator for error in ours("RayJob").iter_errors(document)] == ["additionalProperties"]
