"""Runs groups of checks, and says what they find as lines of JSON, each as soon as it is known.

{"group": "data", "checks": ["manifests", "transcripts"]}                        before the first check of a group
{"check": "manifests", "level": "fault", "text": "…", "seconds": 0.1}            a finding; a check may have several
"""

import importlib
import json
import time
from collections.abc import Callable, Sequence

from trainers.errors import ConfigError, RayscribeError
from trainers.inspection.notes import Check, Level, Note, fault, warning
from trainers.inspection.subject import Subject

# Names of the modules that hold the checks; the quick ones first.
GROUPS = ("storage", "data", "model", "hardware", "nodes")
# Those that need no Ray.
ALONE = ("storage", "data", "model", "hardware")


def check(subject: Subject, only: str | None) -> int:
    """The verb: prints a line for each finding.

    Args:
        subject: What to look at.
        only: Groups, joined by commas. None: all that need no Ray.

    Returns:
        The exit code: 0 where there is no fault, a config error's otherwise.

    Raises:
        ConfigError: there is no such group.
    """
    sound = inspect(subject, parse_groups(only), lambda line: print(line, flush=True))
    return 0 if sound else ConfigError.exit_code


def parse_groups(text: str | None) -> tuple[str, ...]:
    """The groups that `--only storage,data` names.

    Raises:
        ConfigError: there is no such group.
    """
    if text is None:
        return ALONE
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise ConfigError(f"--only {text}: {', '.join(unknown)} is none of {', '.join(GROUPS)}")
    return names


def inspect(subject: Subject, groups: Sequence[str], say: Callable[[str], None]) -> bool:
    """Runs the checks of some groups.

    Args:
        subject: What to look at.
        groups: Some of GROUPS.
        say: Takes the lines.

    Returns:
        Whether no check found a fault.
    """
    sound = True
    for group in groups:
        began = time.monotonic()
        try:
            # Only now: some groups need torch, which takes seconds to load, or Ray.
            checks: Sequence[Check[Subject]] = importlib.import_module(f"trainers.inspection.{group}").CHECKS
        except (ImportError, OSError) as error:
            note = subject.unreachable(f"a package cannot be loaded: {error}; install Rayscribe's requirements")
            say(_line(group, note, began))
            sound = sound and note.level != Level.FAULT
            continue
        say(json.dumps({"group": group, "checks": [check.name for check in checks]}))
        for check in checks:
            sound = _run(check, subject, say) and sound
    return sound


def _run(check: Check[Subject], subject: Subject, say: Callable[[str], None]) -> bool:
    began, sound = time.monotonic(), True
    for note in notes_of(check, subject):
        say(_line(check.name, note, began))
        sound = sound and note.level != Level.FAULT
        began = time.monotonic()
    return sound


def notes_of(check: Check[Subject], subject: Subject) -> list[Note]:
    """What a check says; one that breaks says so itself."""
    notes: list[Note] = []
    try:
        for note in check.run(subject):
            notes.append(note)
    except RayscribeError as error:
        notes.append(fault(str(error)))
    except Exception as error:
        # A slip in a check must not keep a good run from starting.
        notes.append(warning(f"the check itself failed ({type(error).__name__}: {error}); look at this by hand"))
    return notes


def _line(check: str, note: Note, began: float) -> str:
    seconds = round(time.monotonic() - began, 3)
    return json.dumps({"check": check, "level": note.level, "text": note.text, "seconds": seconds}, ensure_ascii=False)
