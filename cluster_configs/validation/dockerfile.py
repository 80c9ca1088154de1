"""Reads a Dockerfile into its instructions, scripts, variables and images."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster_configs.validation.cluster_file import ClusterFile, FileKind, Script, Value, Variable
from cluster_configs.validation.yaml_nodes import Place

# At the beginning of a line that continues none. A here-document belongs to the instruction before it.
_INSTRUCTION = re.compile(
    r"(?<!\\\n)^[ \t]*(FROM|ARG|RUN|ENV|USER|COPY|ADD|WORKDIR|LABEL|CMD|ENTRYPOINT|SHELL|EXPOSE)[ \t]+", re.I | re.M
)
_COMMENT = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")
_PAIR = re.compile(r"""(\w+)=("(?:\\.|[^"\\])*"|'[^']*'|\S*)""")


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    name: str
    rest: str
    place: Place


def is_dockerfile(text: str) -> bool:
    """Whether the first instruction is one that a Dockerfile begins with."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return re.match(r"(FROM\s+\S+(\s+AS\s+\S+)?|ARG\s+\w+(=.*)?)$", first, re.I) is not None


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, in order; lines that go on stay as they are, comments are left out."""
    begins = [*_INSTRUCTION.finditer(text)]
    ends = [*(match.start() for match in begins[1:]), len(text)]
    return [
        Instruction(
            match[1].upper(),
            _COMMENT.sub("", text[match.end() : end]).strip(),
            Place(match[1].upper(), text.count("\n", 0, match.start(1)) + 1),
        )
        for match, end in zip(begins, ends, strict=True)
    ]


def read_dockerfile(text: str) -> ClusterFile:
    """A Dockerfile; what stages are called is no image."""
    found = instructions(text)
    defaults = {
        name: value for instruction in found if instruction.name == "ARG" for name, value in _pairs(instruction.rest)
    }
    images: list[Value] = []
    stages: set[str] = set()
    for instruction in found:
        if instruction.name == "FROM":
            words = [word for word in instruction.rest.split() if not word.startswith("--")] or [""]
            image = _expanded(words[0], defaults)
            if image not in stages | {"scratch"}:
                images.append(Value(instruction.place, image))
            stages |= {*words[2:3]}
    return ClusterFile(
        FileKind.DOCKERFILE,
        text,
        scripts=tuple(
            Script(instruction.place, re.sub(r"^(--\w+=\S+\s+)+", "", instruction.rest))
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
            name = _expanded(words[0] if words else "", values)
            user = Value(instruction.place, name.partition(":")[0])
        users[stage] = user
    return user


def _pairs(rest: str) -> list[tuple[str, str]]:
    pairs = [(name, value.strip("\"'")) for name, value in _PAIR.findall(rest)]
    words = rest.split(maxsplit=1)
    # The old form: ENV NAME value.
    return pairs if pairs or len(words) < 2 else [(words[0], words[1])]


def _expanded(word: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: values.get(match[1]) or match[2] or match[0], word)
