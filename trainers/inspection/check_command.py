"""Implements `task.py --verb check`: runs groups of checks and prints each finding immediately as a line of JSON.

{"group": "data", "checks": ["manifests", "transcripts"]}                        before the first check of a group
{"check": "manifests", "level": "error", "text": "…", "seconds": 0.1}            a finding; a check may have several
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name

from trainers.config.parts.part import (
    ALSO_FIELD,
    AUGMENT_FIELDS,
    DATA_FIELDS,
    DECODE_FIELDS,
    PATH_FIELDS,
    SOURCE_FIELDS,
    STORAGE_FIELDS,
    ConfigScope,
)
from trainers.errors import ConfigError
from trainers.findings import NODE, Check, Level, problem, run_check
from trainers.inspection.subject import Subject

# Group → its checks in this package, and the config fields whose files they open. The quick groups come first, and the
# group that needs Ray last. Model checks also read data, from which a new model's vocabulary is learned.
GROUPS: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "storage": ("machine_checks:STORAGE", STORAGE_FIELDS),
    "data": ("data_checks:CHECKS", (*DATA_FIELDS, *AUGMENT_FIELDS, ALSO_FIELD)),
    "model": ("model_checks:CHECKS", (*DATA_FIELDS, ALSO_FIELD, *DECODE_FIELDS, *SOURCE_FIELDS)),
    "hardware": ("machine_checks:HARDWARE", ()),
    "nodes": ("node_checks:CHECKS", PATH_FIELDS),
}
WITHOUT_RAY = (*GROUPS,)[:-1]


def check(subject: Subject, only: str | None) -> int:
    """Runs groups of checks (`only`, joined by commas; by default all without Ray) and prints a line for each finding.

    Returns the exit code: 0 without errors, otherwise that of ConfigError.
    """
    if subject.light and not subject.needs_torch:
        # Makes transformers behave as if torch were not installed, so that configs and tokenizers load in one second
        # instead of six.
        sys.modules["torch"] = None  # type: ignore[assignment]
    passed = inspect(subject, parse_groups(only), lambda line: print(line, flush=True))
    return 0 if passed else ConfigError.exit_code


def parse_groups(text: str | None) -> tuple[str, ...]:
    """Returns the groups in `--only storage,data`; raises ConfigError for an unknown group."""
    if text is None:
        return WITHOUT_RAY
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise ConfigError(f"--only {text}: {', '.join(unknown)} is none of {', '.join(GROUPS)}")
    return names


def scope_of_groups(text: str | None) -> ConfigScope:
    """Returns the config fields whose files the groups of `--only` open; raises ConfigError for an unknown group."""
    return ConfigScope(tuple(field for group in parse_groups(text) for field in GROUPS[group][1]))


def inspect(subject: Subject, groups: Sequence[str], write_line: Callable[[str], None]) -> bool:
    """Runs the checks of some groups; returns True if no check found an error."""
    passed = True
    for group in groups:
        checks = _checks_of(group)
        write_line(json.dumps({"group": group, "checks": [check.name for check in checks]}))
        for check in checks:
            for finding in run_check(check, subject):
                write_line(json.dumps(finding.model_dump(mode="json"), ensure_ascii=False))
                passed = passed and finding.level != Level.ERROR
    return passed


def _checks_of(group: str) -> Sequence[Check[Subject]]:
    """Returns the checks of a group; if a package that they need cannot be imported, one check that fails."""
    try:
        # Imported late, since some groups need torch, which takes seconds to import, or Ray.
        checks: Sequence[Check[Subject]] = resolve_name(f"{__package__}.{GROUPS[group][0]}")
    except (ImportError, OSError) as error:
        text = f"a package cannot be imported: {error}; install Rayscribe's requirements"
        return [Check(group, (NODE,), lambda _: [problem(text)])]
    return checks
