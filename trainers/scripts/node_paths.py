"""Paths of one node in files for another: many recipes write absolute ones into their manifests."""

import re
from collections.abc import Callable
from pathlib import Path

# Of texts that name files.
SUFFIXES = (".csv", ".json", ".jsonl", ".list", ".lst", ".scp", ".tsv", ".txt", ".yaml", ".yml")


def replace_paths(file: Path, paths: re.Pattern[bytes], here: Callable[[re.Match[bytes]], bytes]) -> None:
    """Replaces what matches `paths` in a text by what it is `here`; other files stay as they are."""
    if file.suffix.lower() not in SUFFIXES:
        return
    content = file.read_bytes()
    changed = paths.sub(here, content)
    if changed != content:
        file.write_bytes(changed)
