"""KubeRay's custom resource definitions, and the trimmed schema that the product ships, made from them.

Their license is Apache-2.0 (github.com/ray-project/kuberay, commit feeaf72fa).
`REGENERATE_SCHEMA=1` with test_kuberay_schema.py writes the file anew.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import settings

KINDS = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}
KEPT = frozenset(
    {"type", "properties", "required", "items", "enum", "additionalProperties", "anyOf", "pattern"}
    | {"minimum", "maxLength", "minLength", "minItems"}
)
# A shorter part is not worth a name.
SHORTEST_NAMED = 120


def schemas_folder() -> Path:
    """Beside the recorded speech; it may be absent."""
    return settings.speech_data().parent / "schemas"


def custom_resource(kind: str) -> dict[str, Any]:
    """The openAPIV3Schema of version v1."""
    text = (schemas_folder() / KINDS[kind]).read_text(encoding="utf-8")
    versions = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    found: dict[str, Any] = next(version for version in versions if version["name"] == "v1")["schema"][
        "openAPIV3Schema"
    ]
    return found


def trimmed(schema: Mapping[str, Any], below_root: bool = True) -> dict[str, Any]:
    """A schema of what a user writes: no descriptions, defaults, formats or status; unknown fields refused."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            result[key] = {
                name: trimmed(part) if below_root or name != "status" else {} for name, part in value.items()
            }
            if "additionalProperties" not in schema:
                result["additionalProperties"] = False
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = trimmed(value)
        elif key == "anyOf":
            result[key] = [trimmed(part) for part in value]
        elif key in KEPT:
            result[key] = value
    return result


def shipped_schema(definitions: Mapping[str, Any]) -> str:
    """The text of the schema file: what stands more than once in it has a name under `$defs`."""
    roots = {kind: trimmed(definition, below_root=False) for kind, definition in definitions.items()}
    counts: Counter[str] = Counter()
    for root in roots.values():
        _count(root, counts)
    names: dict[str, str] = {}
    shared: dict[str, Any] = {}

    def named(part: Any, path: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [named(element, path) for element in part]
        if not isinstance(part, Mapping):
            return part
        key = json.dumps(part, sort_keys=True)
        if path and len(key) > SHORTEST_NAMED and counts[key] > 1:
            if key not in names:
                names[key] = f"{path[-1]}{sum(name.rstrip('0123456789') == path[-1] for name in names.values()) or ''}"
                shared[names[key]] = below(part, path)
            return {"$ref": f"#/$defs/{names[key]}"}
        return below(part, path)

    def below(part: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        return {
            key: {name: named(child, (*path, name)) for name, child in value.items()}
            if key == "properties"
            else named(value, path)
            for key, value in part.items()
        }

    comment = (
        "Fields, types, bounds and choices of KubeRay's custom resources, ray.io/v1: made by a test from "
        "github.com/ray-project/kuberay, commit feeaf72fa, Apache-2.0"
    )
    whole = {"$comment": comment, **{kind: below(root, ()) for kind, root in roots.items()}, "$defs": definitions}
    lines = [f'  "{key}": {_one_line(value)}' for key, value in whole.items() if key != "$defs"]
    inner = ",\n".join(f'    "{name}": {_one_line(value)}' for name, value in sorted(shared.items()))
    return "{\n" + ",\n".join([*lines, '  "$defs": {\n' + inner + "\n  }"]) + "\n}\n"


def _one_line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _count(part: Any, counts: Counter[str]) -> None:
    if isinstance(part, Mapping):
        counts[json.dumps(part, sort_keys=True)] += 1
        for value in part.values():
            _count(value, counts)
    elif isinstance(part, list):
        for value in part:
            _count(value, counts)
