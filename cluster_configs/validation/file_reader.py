"""Detects the kind of a file by its content, and reads it."""

import re
from collections.abc import Iterator
from pathlib import Path

from cluster_configs.providers.known_providers import provider_of
from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Pool, Script, Variable, Violation
from cluster_configs.validation.kubernetes_file import read_kubernetes
from cluster_configs.validation.yaml_nodes import Node, SourceLocation, parse_yaml
from trainers.config.strict_loading import YamlError

# An option of a batch scheduler; the first in a file decides which scheduler.
_BATCH_OPTION = re.compile(r"^#(?:(SBATCH)\s|\$\s+-)", re.MULTILINE)
# YAML of this size is read in a few seconds.
MAX_BYTES = 256 << 10
READABLE, YAML, KNOWN_KIND = "readable", "yaml", "known-kind"
# Rules that a file must satisfy before any other can be checked.
READING = (READABLE, YAML, KNOWN_KIND)
_KINDS = (
    "a ray up file has cluster_name and provider, Kubernetes documents have apiVersion and kind, a ClusterSpec has "
    "pools, a batch script has #SBATCH or #$ lines"
)
# A file with one of these keys is for `ray up`.
KEYS = frozenset({"cluster_name", "provider", "available_node_types", "head_start_ray_commands"})
ACCELERATORS = ("GPU", "HPU")
_COMMANDS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands",
)  # fmt: skip
# `-e NAME=value`, `-eNAME=value`, `-e=…`, `--env NAME=value`, `--env=NAME=value`
_ENV_OPTION = re.compile(r"""(?:^|\s)(?:--env[= ]|-e[= ]?)\s*["']?(\w+)=("[^"]*"|'[^']*'|\S*)""")
_OPTIONS = {"": "run_options", "head": "head_run_options", "worker": "worker_run_options"}


class UnreadableError(Exception):
    """A file cannot be checked further."""

    def __init__(self, rule: str, violation: Violation) -> None:
        super().__init__(violation.fix)
        self.rule, self.violation = rule, violation


def read_start(path: Path) -> bytes:
    """Returns the content of a file, up to one byte more than MAX_BYTES.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def read_cluster_file(content: bytes) -> ClusterFile:
    """Reads a file of any kind; raises UnreadableError if it is not text, not YAML, or of no known kind."""
    text = _text_of(content)
    option = _BATCH_OPTION.search(text)
    kind = None if option is None else FileKind.SLURM if option[1] == "SBATCH" else FileKind.GRID_ENGINE
    # A file without #! may be YAML with such a comment.
    if kind is not None and (text.startswith("#!") or not _is_yaml(text)):
        return ClusterFile(kind, scripts=(Script(SourceLocation(), text, whole_file=True),))
    try:
        documents = parse_yaml(text)
    except YamlError as error:
        fix = "fix the syntax: indent with spaces, quote texts with ': ' or ' #', and use each key once"
        raise UnreadableError(YAML, Violation(SourceLocation(line=error.line), error.reason, fix)) from error
    return _of_documents(text, documents)


def _is_yaml(text: str) -> bool:
    try:
        return any(any(document.items()) for document in parse_yaml(text))
    except YamlError:
        return False


def _text_of(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise _unreadable(
            f"more than {MAX_BYTES} bytes", f"give a cluster file; none needs more than {MAX_BYTES} bytes"
        )
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _unreadable(f"byte {error.start} is not UTF-8", "give a text file in UTF-8") from error
    if "\0" in text:
        raise _unreadable("a zero byte", "give a text file; this file is binary")
    if not text.strip():
        raise _unreadable("empty", "give a cluster file; rayscribe cluster render makes one from a ClusterSpec")
    return text


def _unreadable(value: str, fix: str) -> UnreadableError:
    return UnreadableError(READABLE, Violation(SourceLocation(), value, fix))


def _of_documents(text: str, documents: list[Node]) -> ClusterFile:
    # A Kubernetes List has several documents.
    lists = [one.get("items").elements() if one.get("kind").text == "List" else [one] for one in documents]
    documents = [part for parts in lists for part in parts]
    if documents and all(document.get("apiVersion").text and document.get("kind").text for document in documents):
        return read_kubernetes(documents)
    keys = [key for document in documents for key, _ in document.items()]
    if len(documents) == 1 and not KEYS.isdisjoint(keys):
        return _read_ray_up(documents[0])
    if len(documents) == 1 and "pools" in keys:
        return ClusterFile(FileKind.SPEC, documents=tuple(documents))
    found = f"keys {', '.join(keys[:6])}" if keys else text.strip().splitlines()[0][:60]
    raise UnreadableError(KNOWN_KIND, Violation(SourceLocation(), found, f"this is not a cluster file: {_KINDS}"))


def _read_ray_up(document: Node) -> ClusterFile:
    """Reads a `ray up` file; leaves out parts that Ray would reject, which the rule `ray-schema` reports."""
    node_types = [node for _, node in document.get("available_node_types").items()]
    return ClusterFile(
        FileKind.RAY_UP,
        documents=(document,),
        scripts=tuple(_scripts(document, node_types)),
        variables=tuple(_variables(document, node_types)),
        images=tuple(
            image
            for owner in [document, *node_types]
            for name in ("image", "head_image", "worker_image")
            if (image := owner.get("docker", name)).text
        ),
        pools=tuple(_pools(document)),
    )


def _scripts(document: Node, node_types: list[Node]) -> Iterator[Script]:
    for name in _COMMANDS:
        role = name.partition("_")[0]
        environment = {variable.name: variable.text for variable in _variables(document, [], role)}
        for owner in [document, *node_types]:
            for node in owner.get(name).elements():
                yield Script(node.place, node.text, environment)


def _variables(document: Node, node_types: list[Node], role: str = "") -> Iterator[Variable]:
    """Yields the variables of a role's containers; of all containers if the role is ""."""
    wanted = [name for of, name in _OPTIONS.items() if role in ("", of) or of == ""]
    for owner in [document, *node_types]:
        for option in (node for name in wanted for node in owner.get("docker", name).elements()):
            for name, value in _ENV_OPTION.findall(option.text):
                yield Variable(option.place, value.strip("\"'"), name)


def _pools(document: Node) -> Iterator[Pool]:
    provider = provider_of(document.get("provider"))
    for name, node in document.get("available_node_types").items():
        resources = node.get("resources")
        given = [resources.get(kind).number for kind in ACCELERATORS if resources.get(kind).present]
        yield Pool(
            node,
            head=name == document.get("head_node_type").text,
            spot=provider.spot_setting(node.get("node_config")) if provider is not None else None,
            cpus=resources.get("CPU").number,
            accelerators=sum(count or 0 for count in given) if given else None,
            maximum=1 if (most := node.get("max_workers").number) is None else most,
        )
