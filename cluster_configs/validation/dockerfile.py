"""Reads a Dockerfile into its instructions, scripts, variables and images."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Script, Value, Variable
from cluster_configs.validation.yaml_nodes import Place

_INSTRUCTION = re.compile(r"\s*(FROM|ARG|RUN|ENV|USER|COPY|ADD|WORKDIR|LABEL|CMD|ENTRYPOINT|SHELL|EXPOSE)\s+", re.I)
_REFERENCE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
_PAIR = re.compile(r"""(\w+)=("(?:\\.|[^"\\])*"|'[^']*'|\S*)""")


@dataclass(frozen=True)
class Instruction:
    """One instruction, continued lines joined.

    Attributes:
        name: In capitals.
        rest: Its arguments.
        place: Of its first line.
    """

    name: str
    rest: str
    place: Place


def is_dockerfile(text: str) -> bool:
    """Whether the first instruction is one that a Dockerfile begins with."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return re.match(r"(FROM\s+\S+(\s+AS\s+\S+)?|ARG\s+\w+(=.*)?)$", first) is not None


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile, in order."""
    collected: list[str] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("#"):
            continue
        first = first if collected else number
        collected.append(line.rstrip().removesuffix("\\"))
        if line.rstrip().endswith("\\"):
            continue
        joined = "\n".join(collected)
        collected = []
        if match := _INSTRUCTION.match(joined):
            yield Instruction(match[1].upper(), joined[match.end() :].strip(), Place(match[1].upper(), first))


def read_dockerfile(text: str) -> ClusterFile:
    """A Dockerfile; what stages are called is no image."""
    found = [*instructions(text)]
    defaults = {
        name: value for instruction in found if instruction.name == "ARG" for name, value in _pairs(instruction.rest)
    }
    images: list[Value] = []
    stages: set[str] = set()
    for instruction in found:
        if instruction.name == "FROM":
            words = [word for word in instruction.rest.split() if not word.startswith("--")] or [""]
            image = _REFERENCE.sub(lambda match: defaults.get(match[1]) or match[2] or match[0], words[0])
            if image not in stages | {"scratch"}:
                images.append(Value(instruction.place, image))
            stages |= {*words[2:3]}
    return ClusterFile(
        FileKind.DOCKERFILE,
        text,
        scripts=tuple(
            Script(instruction.place, re.sub(r"^(--\w+=\S+\s+)+", "", instruction.rest).replace("\n", "\\\n"))
            for instruction in found
            if instruction.name == "RUN" and not instruction.rest.startswith("[")
        ),
        variables=tuple(
            Variable(instruction.place, value, name)
            for instruction in found
            if instruction.name in ("ARG", "ENV", "LABEL")
            for name, value in _pairs(instruction.rest)
        ),
        images=tuple(images),
    )


def _pairs(rest: str) -> list[tuple[str, str]]:
    pairs = [(name, value.strip("\"'")) for name, value in _PAIR.findall(rest)]
    words = rest.split(maxsplit=1)
    # The old form: ENV NAME value.
    return pairs if pairs or len(words) < 2 else [(words[0], words[1])]
