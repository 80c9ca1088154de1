"""Paths into archives: `corpus.tar/clips/a.wav` is the member clips/a.wav of corpus.tar. Of many: `{000..127}`."""

import re
from collections.abc import Iterator
from itertools import product

SUFFIXES = (".tar", ".tar.gz", ".tgz")
COMPRESSED = (".gz", ".tgz")
_INTO_ARCHIVE = re.compile(r"[^/]\.(?:tar|tar\.gz|tgz)/(?=.)", re.DOTALL | re.IGNORECASE)
# NeMo has its own brackets, since some schedulers expand braces: shard__OP_0..127_CL_.tar.
_NEMO_BRACES = {"_OP_": "{", "_CL_": "}"}
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 1_000_000


def archives_in(path: str) -> Iterator[tuple[str, str]]:
    """Each archive that a path may lead into, with the member: by its parts that are named like one."""
    for found in _INTO_ARCHIVE.finditer(path):
        yield path[: found.end() - 1], path[found.end() :]


def is_archive(path: str) -> bool:
    """Whether a path is named like an archive."""
    return path.lower().endswith(SUFFIXES)


def is_compressed(path: str) -> bool:
    """Whether an archive is named like a compressed one."""
    return path.lower().endswith(COMPRESSED)


def expand_names(pattern: str) -> list[str]:
    """The paths that a pattern means, in order: `{000..127}` counts with the digits that it is written with.

    `{train,dev}` means each of the names in it; of several braces, the last changes first.

    Raises:
        ValueError: a range goes backwards, or the pattern means more than a million paths.
    """
    for brackets, brace in _NEMO_BRACES.items():
        pattern = pattern.replace(brackets, brace)
    pieces = _BRACES.split(pattern)
    choices = [list(_choices(piece)) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST_NAMES:
        raise ValueError(f"{pattern} means {count} files: name {_MOST_NAMES} at most")
    return ["".join(parts) for parts in product(*choices)]


def _choices(inside: str) -> Iterator[str]:
    found = _RANGE.fullmatch(inside)
    if found is None:
        yield from inside.split(",")
        return
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ValueError(f"{{{inside}}} goes backwards: write the smaller number first")
    if last - first >= _MOST_NAMES:
        raise ValueError(f"{{{inside}}} means {last - first + 1} files: name {_MOST_NAMES} at most")
    for number in range(first, last + 1):
        yield str(number).zfill(len(found[1]))
