"""Rules of fields and types: Ray's schema, KubeRay's schema, and the syntax of all shell text, which bash checks."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator, ValidationError

from cluster_configs.validation.cluster_file import (
    BATCH,
    CLUSTERS,
    KUBERNETES,
    RAY_UP,
    ClusterFile,
    Rule,
    Violation,
)
from cluster_configs.validation.yaml_nodes import Node
from runtime_env.credentials import masked
from trainers.errors import ConfigError

# The fields, types, bounds and choices of KubeRay's custom resources, ray.io/v1, without their descriptions.
KUBERAY_SCHEMA = Path(__file__).with_name("kuberay_schema.json")
# Kinds that the schema describes.
KUBERAY_KINDS = ("RayCluster", "RayJob")
MOST = 20
SYNTAX_TIMEOUT_S = 20
LONGEST_VALUE = 80
_TYPES = {"object": "a mapping", "array": "a list", "string": "a text", "integer": "a whole number"}


@cache
def ray_schema() -> Mapping[str, Any]:
    """Returns the JSON schema with which Ray checks a `ray up` file; does not import Ray."""
    spec = find_spec("ray")
    assert spec is not None and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], "autoscaler", "ray-schema.json")
    schema: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def syntax_error(script: str) -> tuple[int, str] | None:
    """Returns the line (from 1) and message of the first error of `bash -n`, which executes nothing; None without one.

    Raises:
        ConfigError: bash is not installed, or runs longer than SYNTAX_TIMEOUT_S.
    """
    if shutil.which("bash") is None:
        raise ConfigError("bash is not on PATH: install it; it checks the syntax of commands (bash -n)")
    try:
        answer = subprocess.run(
            ["bash", "--norc", "-n"],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYNTAX_TIMEOUT_S,
            check=False,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"bash -n did not end within {SYNTAX_TIMEOUT_S} s: shorten the script") from error
    found = re.search(r"line (\d+): (.*)", answer.stderr)
    return None if found is None else (int(found[1]), found[2].removeprefix("syntax error: "))


@cache
def kuberay_schema() -> Mapping[str, Any]:
    """Returns a JSON schema for each of KUBERAY_KINDS, by kind, and the `$defs` that they share."""
    schema: Mapping[str, Any] = json.loads(KUBERAY_SCHEMA.read_text(encoding="utf-8"))
    return schema


def shown(value: Any) -> str:
    """Formats a value for a message: shortened, and with texts that look like credentials masked."""
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    text = masked("null" if value is None else str(value)).replace("\n", " ")
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _ray_schema(file: ClusterFile) -> Iterator[Violation]:
    errors = Draft7Validator(ray_schema()).iter_errors(file.document.value)
    yield from (_violation(file.document, error) for error in islice(errors, MOST))


def _kuberay_schema(file: ClusterFile) -> Iterator[Violation]:
    for document in file.of_kind(*KUBERAY_KINDS):
        version = document.get("apiVersion")
        if version.text != "ray.io/v1":
            yield Violation.at(version, "set apiVersion: ray.io/v1, the version that KubeRay stores")
            continue
        schema = {**kuberay_schema()[document.get("kind").text], "$defs": kuberay_schema()["$defs"]}
        errors = Draft202012Validator(schema).iter_errors(document.value)
        yield from (_violation(document, error) for error in islice(errors, MOST))


def _violation(document: Node, error: ValidationError) -> Violation:
    node = document.get(*error.absolute_path)
    # jsonschema has no types for these.
    instance: Any = error.instance
    schema: Any = error.schema
    wanted: Any = error.validator_value
    if error.validator == "additionalProperties":
        known = [*schema.get("properties", {})]
        unknown = sorted(str(key) for key in instance if key not in known)
        close = get_close_matches(unknown[0], known, 1)
        names = ", ".join(sorted(known)[:12]) + (", …" if len(known) > 12 else "")
        fix = f"did you mean {close[0]}?" if close else f"remove it; known fields are {names}"
        return Violation(node.get(unknown[0]).place, ", ".join(unknown), f"no such field: {fix}")
    if error.validator == "required":
        missing = [key for key in wanted if key not in instance]
        return Violation(node.place, "", f"add {', '.join(missing)}")
    types = [wanted] if isinstance(wanted, str) else wanted
    fixes: dict[str, Callable[[], str]] = {
        "type": lambda: f"give {' or '.join(_TYPES.get(name, name) for name in types)}",
        "anyOf": lambda: "give a whole number or a text",
        "enum": lambda: f"give one of {', '.join(map(str, wanted))}",
        "minimum": lambda: f"give at least {wanted}",
        "pattern": lambda: f"give a value of the form {wanted}",
    }
    fix = fixes.get(str(error.validator), lambda: f"{error.validator}: {shown(wanted)}")()
    return Violation(node.place, shown(instance), fix)


def _shell_syntax(file: ClusterFile) -> Iterator[Violation]:
    for script in file.scripts:
        error = syntax_error(script.text)
        if error is not None:
            line, message = error
            place = script.at(line - 1)
            lines = script.text.splitlines()
            value = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            yield Violation(place, shown(value), f"bash cannot parse it: {message}")


RULES = (
    Rule("ray-schema", RAY_UP, _ray_schema),
    Rule("kuberay-schema", KUBERNETES, _kuberay_schema),
    Rule("shell-syntax", CLUSTERS | BATCH, _shell_syntax),
)
