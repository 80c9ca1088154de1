"""Splits requirements files into lines, and checks the lines. Pure."""

import re
from collections.abc import Sequence

from runtime_env.credentials import REFERENCE, holds_literal_credentials, references_in, value_looks_secret

ALL_WHEELS = "--only-binary :all:"
# Packages that recipes may need, and that the index only has as source.
SOURCE_ONLY = {"deepspeed"}

_COMMENT = re.compile(r"(?:^|(?<!\s)\s+)#.*$")
_OPTION = re.compile(r"^(?:-([a-zA-Z])\s*|(--[a-z][a-z-]*)(?:\s*=\s*|\s+|$))(.*)$", re.DOTALL)
_SHORT = {"r": "--requirement", "c": "--constraint", "e": "--editable", "i": "--index-url", "f": "--find-links"}
_VERSION_CONTROL = re.compile(r"(?:^|[\s@])(?:git|hg|svn|bzr)\+", re.IGNORECASE)
_NAME = re.compile(r"^(?![A-Za-z0-9+._-]*://)[A-Za-z0-9][A-Za-z0-9._-]*")
_URL = re.compile(r"@\s*[a-z+]+://\S+|^[a-z+]+://\S+", re.IGNORECASE)


def check_line(line: str, tool: str) -> None:
    """Rejects a requirement line that cannot work on a node, or that contains a credential.

    Raises:
        ValueError: the line is not valid; the message does not repeat a credential.
    """
    if holds_literal_credentials(line) or value_looks_secret(line):
        raise ValueError(
            "a line contains a credential (not shown): write ${NAME} instead, and set the variable NAME in the "
            "environment in which Ray runs on each node"
        )
    check_references(line)
    option = option_of(line)
    if option == "--requirement":
        raise ValueError(f"{line}: name the file directly, job.runtime_env.{tool}: {included_file(line)}")
    if option in ("--constraint", "--editable"):
        raise ValueError(
            f"{line}: {option} names a file that the nodes do not have: "
            + ("write the pinned versions into the list itself" if option == "--constraint" else "name a built package")
        )
    if option is None and line.startswith((".", "/", "file:")):
        raise ValueError(f"{line}: nodes cannot install from a local path: name a package of an index, or a URL")
    if references_in(line) and _VERSION_CONTROL.search(line):
        raise ValueError(
            f"{line}: the variable's value would be in the command line of git, which all users of the node can read: "
            "use git+ssh, or a git credential helper on the node"
        )
    if tool == "uv" and option == "--trusted-host":
        raise ValueError(f"{line}: uv has no such option: set UV_INSECURE_HOST in the environment of the nodes")


def check_references(text: str) -> None:
    """Raises ValueError for a `$` that is not part of `${NAME}`, and for names of pip's and uv's settings."""
    if "$" in REFERENCE.sub("", text):
        raise ValueError(f"{text}: pip and uv replace only ${{NAME}} with capitals, digits and _ in the name")
    for name in references_in(text):
        if name.startswith(("PIP_", "UV_")):
            raise ValueError(
                f"${{{name}}}: variables that begin with PIP_ or UV_ are settings of pip and uv (PIP_USER is pip's "
                f"--user): use another name, e.g. INDEX_{name.partition('_')[2]}"
            )


def check_for_pip_with_references(lines: Sequence[str]) -> None:
    """Raises ValueError for lines that pip would build from source, if index URLs have credentials.

    For the build's own requirements, pip starts another pip with the index URLs and credentials in its command line.
    """
    for line in lines:
        direct = _URL.search(line)
        is_wheel = direct is not None and ".whl" in direct[0]
        if option_of(line) in ("--no-binary", "--only-binary") or (direct and not is_wheel and option_of(line) is None):
            raise ValueError(
                f"{line}: with ${{NAME}} in an index URL pip installs only wheels, since during a build from source "
                "the node's process list shows the credentials: use job.runtime_env.uv, which does not show them"
            )


def named_package(line: str) -> str | None:
    """Returns the canonical name of the package in a requirement line; None if the line is an option or only a URL."""
    match = _NAME.match(line)
    return canonical(match[0]) if match is not None and option_of(line) is None and "://" not in match[0] else None


def canonical(name: str) -> str:
    """Returns a package's name in normalized form, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(constraints: str) -> dict[str, str]:
    """Parses lines `name==version`; returns versions by canonical name."""
    pairs = (line.partition("#")[0].strip().split("==") for line in constraints.splitlines())
    return {canonical(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def included_file(line: str) -> str | None:
    """Returns the file that a line `-r FILE` includes; None for other lines."""
    match = _OPTION.match(line)
    return match[3].strip() if match is not None and option_of(line) == "--requirement" else None


def logical_lines(text: str) -> list[str]:
    """Splits a requirements file into lines, without comments, with continued lines joined and single blanks."""
    lines, begun = [], ""
    for written in text.splitlines():
        # As in pip, a comment ends a continued line.
        physical = "" if _COMMENT.match(written) else written
        if physical.endswith("\\"):
            begun += physical[:-1] + " "
            continue
        complete = " ".join(_COMMENT.sub("", begun + physical).split())
        begun = ""
        if complete:
            lines.append(complete)
    rest = " ".join(begun.split())
    return [*lines, rest] if rest else lines


def option_of(line: str) -> str | None:
    """Returns the option of a line, in its long form; None if the line is a requirement."""
    match = _OPTION.match(line)
    if match is None:
        return None
    return _SHORT.get(match[1], f"-{match[1]}") if match[1] else match[2]
