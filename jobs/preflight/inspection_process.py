"""Checks of data, model and storage: `task.py --verb check` in a process of its own, which may load torch.

It says its findings as lines of JSON, see `trainers/inspection/check_command.py`; other output is passed over.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from jobs.preflight.case import Case
from jobs.preflight.finding import Finding
from jobs.submission.job_spec import JobSpec
from trainers.config.loader import PATH_FIELDS, variables_in

GROUPS = ("storage", "data", "model", "hardware")
# Before a submit nobody waits longer than this; what was not looked at by then is said to be so.
QUICK_DEADLINE_S = 20.0
DEEP_DEADLINE_S = 1800.0
QUICK_RECORDINGS_S = 2.0
DEEP_RECORDINGS_S = 120.0


class Inspection:
    """One process that inspects; started first, asked last, so that other checks run meanwhile."""

    def __init__(self, case: Case):
        """Starts it, unless the recipe names something that only the nodes know."""
        assert case.spec is not None
        self._deadline_s = DEEP_DEADLINE_S if case.deep else QUICK_DEADLINE_S
        self._unknown = _unknown_variables(case.spec)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        if not self._unknown:
            self._process = subprocess.Popen(
                command_of(case),
                cwd=case.root,
                env={**os.environ, **case.spec.job.runtime_env.env_vars},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def findings(self) -> list[Finding]:
        """Waits for its end, or for the end of its time."""
        if self._process is None:
            return missing([], GROUPS, f"the recipe names {', '.join(self._unknown)}, which only the nodes know")
        left_s = self._deadline_s - (time.monotonic() - self._began)
        reason = f"not done within {self._deadline_s:.0f} s; `rayscribe preflight` takes its time"
        try:
            output, errors = self._process.communicate(timeout=max(0.0, left_s))
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
        else:
            reason = _last_words(self._process.returncode, errors)
        lines = output.decode(errors="replace").splitlines()
        return [*parse(lines), *missing(lines, GROUPS, reason)]

    def close(self) -> None:
        """Ends the process, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def command_of(case: Case) -> list[str]:
    """The command line of the process."""
    assert case.spec is not None
    seconds = DEEP_RECORDINGS_S if case.deep else QUICK_RECORDINGS_S
    words = [sys.executable, "task.py", *words_of(GROUPS, str(case.spec.path.resolve()), case.spec.overrides)]
    words += ["--recordings-s", f"{seconds:g}"]
    return words if case.on_this_machine else [*words, "--elsewhere"]


def words_of(groups: Sequence[str], recipe: str, overrides: Sequence[str]) -> list[str]:
    """Arguments of task.py."""
    words = ["--verb", "check", "--only", ",".join(groups), "--config", recipe]
    for override in overrides:
        words += ["--set", override]
    return words


def parse(lines: Iterable[str]) -> list[Finding]:
    """The findings among the lines that were printed."""
    findings = []
    for content in _objects(lines):
        if "check" in content:
            try:
                findings.append(Finding.model_validate(content))
            except ValidationError:
                continue
    return findings


def missing(lines: Iterable[str], groups: Sequence[str], reason: str) -> list[Finding]:
    """Says of groups and checks that were asked for, and of which nothing is heard, that they were skipped."""
    contents = list(_objects(lines))
    heard = {str(content["check"]) for content in contents if "check" in content}
    plan = {str(content["group"]): content.get("checks", []) for content in contents if "group" in content}
    silent = []
    for group in groups:
        checks = [str(check) for check in plan.get(group, [group])]
        silent += [check for check in checks if check not in heard]
    return [Finding(check=check, level="skipped", text=reason) for check in silent]


def _objects(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content


def _unknown_variables(spec: JobSpec) -> list[str]:
    known = {*os.environ, *spec.job.runtime_env.env_vars}
    values = [getattr(getattr(spec.config, part), field) for part, field in PATH_FIELDS]
    return sorted({name for value in values if value for name in variables_in(value)} - known)


def _last_words(exit_code: int, errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else "it said nothing"
    return f"`task.py --verb check` ended with exit code {exit_code}: {said}"
