"""Reads a Dockerfile into its instructions, scripts, variables and images."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Script, Value, Variable
from cluster_configs.validation.yaml_nodes import Place

_INSTRUCTION = re.compile(r"\s*(FROM|ARG|RUN|ENV|USER|COPY|ADD|WORKDIR|LABEL|CMD|ENTRYPOINT|SHELL|EXPOSE)\s+", re.I)
_HERE_DOCUMENT = re.compile(r"""(?<!<)<<-?["']?([A-Za-z_]\w*)["']?""")
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
    return re.match(r"(FROM\s+\S+(\s+AS\s+\S+)?|ARG\s+\w+(=.*)?)$", first, re.I) is not None


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of a Dockerfile, in order."""
    collected: list[str] = []
    first = 0
    tags: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if tags:
            collected.append(line)
            if line.strip("\t") == tags[0]:
                tags.pop(0)
        elif line.lstrip().startswith("#"):
            continue
        else:
            first = first if collected else number
            collected.append(line.rstrip().removesuffix("\\"))
            if line.rstrip().endswith("\\"):
                continue
            tags = _HERE_DOCUMENT.findall("\n".join(collected))
        if tags:
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
            Script(instruction.place, _shell_text(re.sub(r"^(--\w+=\S+\s+)+", "", instruction.rest)))
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


def last_user(file: ClusterFile) -> Value:
    """Who runs the image: the last USER of its last stage, or of the stage that this one begins with."""
    users: dict[str, Value] = {}
    user, stage = Value(Place(), "root"), ""
    values = {variable.name: variable.text for variable in file.variables}
    for instruction in instructions(file.text):
        words = instruction.rest.split()
        if instruction.name == "FROM":
            words = [word for word in words if not word.startswith("--")] or [""]
            user, stage = users.get(words[0], Value(instruction.place, "root")), words[-1]
        elif instruction.name == "USER":
            name = _REFERENCE.sub(lambda match: values.get(match[1]) or match[2] or match[0], words[0] if words else "")
            user = Value(instruction.place, name.partition(":")[0])
        users[stage] = user
    return user


def _shell_text(rest: str) -> str:
    return rest if _HERE_DOCUMENT.search(rest) else rest.replace("\n", "\\\n")


def _pairs(rest: str) -> list[tuple[str, str]]:
    pairs = [(name, value.strip("\"'")) for name, value in _PAIR.findall(rest)]
    words = rest.split(maxsplit=1)
    # The old form: ENV NAME value.
    return pairs if pairs or len(words) < 2 else [(words[0], words[1])]
