"""Rules against plain-text secrets: in variables, commands, fields, or Kubernetes Secrets. Values are never shown."""

import re
from collections.abc import Iterator

from cluster_configs.validation.cluster_file import EVERY_KIND, ClusterFile, FileKind, Rule, Violation
from cluster_configs.validation.shell_commands import WORD_PART, unquoted
from cluster_configs.validation.yaml_nodes import Node, SourceLocation
from runtime_env.credentials import is_switch, is_token_of_text, name_looks_secret, value_looks_secret

HIDDEN = "(not shown)"
_LAST_WORDS = frozenset({"PASSWORD", "PASSWD", "PASSPHRASE", "TOKEN", "SECRET", "CREDENTIALS"})
_FIXES = {
    FileKind.RAY_UP: "take it out, and revoke it; bring a file by file_mounts, or set it on the nodes",
    FileKind.KUBERNETES: "take it out, and revoke it; refer to a Secret by valueFrom.secretKeyRef",
    FileKind.SPEC: "take it out, and revoke it; name it under secrets",
}
# Programs whose `login -p` is a password; in other programs, it is something else (in gh, a protocol).
_CLIENTS = r"docker|podman|nerdctl|buildah|skopeo|helm|oras|crane|az"
_PASSWORD = re.compile(rf"\b(?:sshpass\s(?:-[^p]\S*\s+)*|(?:{_CLIENTS})\s.*?\blogin\b.*?\s)-p\s*(\S+)")
# `NAME=value`, `--name=value`, `--name value`, and `-eNAME=value`, docker's -e NAME=value.
_NAMED = re.compile(
    r"(?<![\w$-])(?:(?:-e|--?)?(?P<name>[A-Za-z_][\w-]*)=|--(?P<option>[a-z][\w-]*(?<!-stdin))[ \t]+(?!-))"
    rf"(?P<value>{WORD_PART}+)"
)
_LINE = re.compile(r".+")
_BATCH_FIX = "take it out, and revoke it; read it from a file of mode 0600"


def _no_secret_in_clear(file: ClusterFile) -> Iterator[Violation]:
    fix = _FIXES.get(file.kind, _BATCH_FIX)
    seen: dict[SourceLocation, Violation] = {}
    variables = [(each.place, each.name) for each in file.variables if _is_secret(each.name, each.text)]
    for place, what in [*variables, *_of_scripts(file), *_of_fields(file)]:
        seen.setdefault(place, Violation(place, f"{what}: {HIDDEN}", fix))
    yield from seen.values()


def _of_scripts(file: ClusterFile) -> Iterator[tuple[SourceLocation, str]]:
    for script in file.scripts:
        for place, match in script.find(_NAMED):
            name = match["name"] or match["option"]
            if _is_secret(name.replace("-", "_"), unquoted(match["value"])):
                yield place, name
        for place, match in script.find(_PASSWORD):
            if _is_literal(match[1]):
                yield place, "a password"
        for place, match in script.find(_LINE):
            if value_looks_secret(match[0]):
                yield place, "a command"
        if value_looks_secret(script.text):
            yield script.place, "a command"


def _of_fields(file: ClusterFile) -> Iterator[tuple[SourceLocation, str]]:
    for document in file.documents:
        if document.get("kind").text == "Secret":
            for field in ("data", "stringData"):
                yield from ((node.place, name) for name, node in document.get(field).items() if node.text)
        # Only the cluster's key can decrypt this field.
        sealed = document.get("kind").text == "SealedSecret" and document.get("spec", "encryptedData")
        for node in document.walk():
            if node is not sealed:
                yield from _of_mapping(node)


def _of_mapping(mapping: Node) -> Iterator[tuple[SourceLocation, str]]:
    for name, node in mapping.items():
        last = re.split(r"_|-|(?<=[a-z])(?=[A-Z])", name)[-1].upper()
        values = [node, node.get("value")]
        for found in values:
            text = found.value if isinstance(found.value, str) else ""
            named = last in _LAST_WORDS and not is_token_of_text(name)
            if (named and _is_literal(text)) or value_looks_secret(text):
                yield found.place, name
    for node in mapping.elements():
        if isinstance(node.value, str) and value_looks_secret(node.value):
            yield node.place, "a value"


def _is_secret(name: str, value: str) -> bool:
    return value_looks_secret(value) or (name_looks_secret(name) and _is_literal(value))


def _is_literal(value: str) -> bool:
    """Returns True if a text is a value, not a reference (`$NAME`, `$(command)`), a path, a switch or a placeholder."""
    return not is_switch(value) and not value.lstrip('"').startswith(("$", "/", "~/", "<", "`", "@"))


RULES = (Rule("no-secret-in-clear", EVERY_KIND, _no_secret_in_clear),)
