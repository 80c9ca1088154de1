"""Input of the rules: a file of any kind as scripts, variables, images and pools, each with its location."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from cluster_configs.validation.shell_commands import RayStart, command_lines, ray_starts_in
from cluster_configs.validation.yaml_nodes import Node, SourceLocation


class FileKind(StrEnum):
    """The kinds of files that can be checked."""

    RAY_UP = "ray up"
    KUBERNETES = "Kubernetes"
    SLURM = "Slurm script"
    GRID_ENGINE = "Grid Engine script"
    SPEC = "ClusterSpec"


RAY_UP = frozenset({FileKind.RAY_UP})
KUBERNETES = frozenset({FileKind.KUBERNETES})
SPEC = frozenset({FileKind.SPEC})
BATCH = frozenset({FileKind.SLURM, FileKind.GRID_ENGINE})
CLUSTERS = frozenset({FileKind.RAY_UP, FileKind.KUBERNETES})
EVERY_KIND = frozenset(FileKind)


@dataclass(frozen=True)
class Variable:
    """An environment variable that the file sets."""

    place: SourceLocation
    text: str
    name: str


@dataclass(frozen=True)
class Script:
    """Shell text that one shell runs, with the variables that the file sets for it; or a complete file."""

    place: SourceLocation
    text: str
    environment: Mapping[str, str] = field(default_factory=dict)
    whole_file: bool = False

    def at(self, line: int) -> SourceLocation:
        """Returns the location of a line, counted from 0."""
        return SourceLocation(self.place.path, line + 1) if self.whole_file else self.place

    def find(self, pattern: re.Pattern[str]) -> Iterator[tuple[SourceLocation, re.Match[str]]]:
        for match in pattern.finditer(command_lines(self.text)):
            yield self.at(self.text.count("\n", 0, match.start())), match

    def ray_starts(self) -> Iterator[tuple[SourceLocation, RayStart]]:
        for start in ray_starts_in(self.text, self.environment):
            yield self.at(start.line), start


@dataclass(frozen=True)
class Pool:
    """Nodes of one kind.

    Attributes:
        node: Their description in the file.
        head: True if Ray's head, and thus the drivers of jobs, run there.
        spot: The setting that makes them spot nodes; None if they are not.
        cpus, accelerators: Number on each node, as Ray counts; None if the file does not have it.
        maximum: Largest number of nodes.
    """

    node: Node
    head: bool
    spot: Node | None
    cpus: float | None
    accelerators: float | None
    maximum: float


@dataclass(frozen=True)
class ClusterFile:
    """A parsed file."""

    kind: FileKind
    documents: tuple[Node, ...] = ()
    scripts: tuple[Script, ...] = ()
    variables: tuple[Variable, ...] = ()
    images: tuple[Node, ...] = ()
    pools: tuple[Pool, ...] = ()

    @property
    def document(self) -> Node:
        """The first document of a YAML file; an absent node for a script."""
        return self.documents[0] if self.documents else Node(present=False)

    @property
    def node_types(self) -> list[Node]:
        """The kinds of nodes of a `ray up` file."""
        return [node for _, node in self.document.get("available_node_types").items()]

    def of_kind(self, *kinds: str) -> Iterator[Node]:
        return (document for document in self.documents if document.get("kind").text in kinds)

    def ray_starts(self) -> Iterator[tuple[SourceLocation, RayStart]]:
        for script in self.scripts:
            yield from script.ray_starts()

    def find(self, pattern: re.Pattern[str]) -> Iterator[tuple[SourceLocation, re.Match[str]]]:
        for script in self.scripts:
            yield from script.find(pattern)


@dataclass(frozen=True)
class Violation:
    """One violation of a rule; `value` is "" if it is missing or must not be shown."""

    place: SourceLocation
    value: str
    fix: str

    @classmethod
    def at(cls, node: Node, fix: str) -> Self:
        """Returns a violation by a value of the file, which is shown."""
        return cls(node.place, node.text, fix)


@dataclass(frozen=True)
class Rule:
    """One rule; `check` yields its violations."""

    name: str
    kinds: frozenset[FileKind]
    check: Callable[[ClusterFile], Iterable[Violation]]


# A network with a shorter prefix has many owners.
LEAST_PREFIX = 8


def is_the_world(network: str) -> bool:
    """Returns True if a network, as ADDRESS/BITS, is the internet or a large part of it."""
    try:
        return "/" in network and ipaddress.ip_network(network, strict=False).prefixlen < LEAST_PREFIX
    except ValueError:
        return False
