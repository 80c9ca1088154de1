"""Tells what a file is by its content, and reads it."""

import re
from pathlib import Path

from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Script, Violation
from cluster_configs.validation.kubernetes_file import read_kubernetes
from cluster_configs.validation.ray_up_file import KEYS, read_ray_up
from cluster_configs.validation.yaml_nodes import Node, Place, parse_yaml
from trainers.config.strict_loading import YamlError

# An option of a batch scheduler; whose come first says which it is.
_BATCH_OPTION = re.compile(r"^#(?:(SBATCH)\s|\$\s+-)", re.MULTILINE)
# YAML of this size is read in a few seconds.
MAX_BYTES = 256 << 10
READABLE, YAML, KNOWN_KIND = "readable", "yaml", "known-kind"
# Rules that a file must keep before any other can be checked.
READING = {
    READABLE: "the file is text, not empty, and at most 256 KiB",
    YAML: "YAML is well formed, no key stands twice, and aliases stay small",
    KNOWN_KIND: "the file is of a kind that can be checked",
}
_KINDS = (
    "a ray up file has cluster_name and provider, Kubernetes documents have apiVersion and kind, a ClusterSpec has "
    "pools, a batch script has #SBATCH or #$ lines"
)


class UnreadableError(Exception):
    """A file cannot be checked further."""

    def __init__(self, rule: str, violation: Violation) -> None:
        super().__init__(violation.fix)
        self.rule, self.violation = rule, violation


def read_start(path: Path) -> bytes:
    """The content of a file, of a large one no more than shows that it is too large.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def read_cluster_file(content: bytes) -> ClusterFile:
    """Reads a file of any kind.

    Raises:
        UnreadableError: it is not text, not YAML, or of no known kind.
    """
    text = _text_of(content)
    option = _BATCH_OPTION.search(text)
    kind = None if option is None else FileKind.SLURM if option[1] == "SBATCH" else FileKind.GRID_ENGINE
    # Without #! it may be YAML with such a comment.
    if kind is not None and (text.startswith("#!") or not _is_yaml(text)):
        return ClusterFile(kind, text, scripts=(Script(Place(), text, whole_file=True),))
    try:
        documents = parse_yaml(text)
    except YamlError as error:
        fix = "fix the syntax: indent with spaces, quote what holds ': ' or ' #', and name each key once"
        raise UnreadableError(YAML, Violation(Place(line=error.line), error.reason, fix)) from error
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
        raise _unreadable("a zero byte", "give a text file; this one is binary")
    if not text.strip():
        raise _unreadable("empty", "give a cluster file; rayscribe cluster render makes one from a ClusterSpec")
    return text


def _unreadable(value: str, fix: str) -> UnreadableError:
    return UnreadableError(READABLE, Violation(Place(), value, fix))


def _of_documents(text: str, documents: list[Node]) -> ClusterFile:
    # A Kubernetes List is as many documents.
    lists = [one.get("items").elements() if one.get("kind").text == "List" else [one] for one in documents]
    documents = [part for parts in lists for part in parts]
    if documents and all(document.get("apiVersion").present or document.get("kind").present for document in documents):
        return read_kubernetes(text, documents)
    keys = [key for document in documents for key, _ in document.items()]
    if len(documents) == 1 and not KEYS.isdisjoint(keys):
        return read_ray_up(text, documents[0])
    if len(documents) == 1 and "pools" in keys:
        return ClusterFile(FileKind.SPEC, text, documents=tuple(documents))
    found = f"keys {', '.join(keys[:6])}" if keys else text.strip().splitlines()[0][:60]
    raise UnreadableError(KNOWN_KIND, Violation(Place(), found, f"this is no cluster file: {_KINDS}"))
