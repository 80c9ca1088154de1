"""Parses paths into archives (`corpus.tar/clips/a.wav` is clips/a.wav in corpus.tar), and expands `{000..127}`."""

import math
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from trainers.config.storage_location import is_remote

SUFFIXES = (".tar", ".tar.gz", ".tgz")
COMPRESSED = (".gz", ".tgz")
SUFFIX = r"\.(?:tar|tar\.gz|tgz)"
_INTO_ARCHIVE = re.compile(rf"[^/]{SUFFIX}/(?=.)", re.DOTALL | re.IGNORECASE)
# NeMo's own notation for braces, which some schedulers expand: shard__OP_0..127_CL_.tar.
_NEMO_BRACES = {"_OP_": "{", "_CL_": "}"}
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 1_000_000


def archives_in(path: str) -> Iterator[tuple[str, str]]:
    """Yields each archive that a path may lead into, with the member, judging by the names of its parts."""
    for found in _INTO_ARCHIVE.finditer(path):
        yield path[: found.end() - 1], path[found.end() :]


def is_missing(path: str) -> bool:
    """Returns True if on this machine neither a path nor any archive that it may lead into exists."""
    return not (is_remote(path) or any(Path(each).exists() for each in (path, *dict(archives_in(path)))))


def is_archive(path: str) -> bool:
    """Returns True if the path has the suffix of an archive."""
    return path.lower().endswith(SUFFIXES)


def is_compressed(path: str) -> bool:
    """Returns True if the path has the suffix of a compressed archive."""
    return path.lower().endswith(COMPRESSED)


def expand_names(pattern: str) -> list[str]:
    """Returns the paths that a pattern expands to, in order; `{000..127}` keeps its number of digits.

    `{train,dev}` expands to each of its names; of several braces, the last varies fastest. Raises ValueError if a range
    is descending, or the pattern expands to more than a million paths.
    """
    for brackets, brace in _NEMO_BRACES.items():
        pattern = pattern.replace(brackets, brace)
    pieces = _BRACES.split(pattern)
    choices = [list(_choices(piece)) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    if (count := math.prod(map(len, choices))) > _MOST_NAMES:
        raise ValueError(f"{pattern} expands to {count} files: give {_MOST_NAMES} at most")
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
        raise ValueError(f"{{{inside}}} expands to {last - first + 1} files: give {_MOST_NAMES} at most")
    for number in range(first, last + 1):
        yield str(number).zfill(len(found[1]))
