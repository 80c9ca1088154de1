"""Checks of data, model and storage: `task.py --verb check` in a process of its own, which may import torch.

It prints its findings as lines of JSON, see `trainers/inspection/check_command.py`; other output is passed over.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from jobs.preflight.context import Context
from jobs.submission.job_spec import JobSpec
from jobs.submission.ray_request import entry_words
from trainers.config.locations import path_values, variables_in
from trainers.config.submitted import CONFIG_VARIABLE, config_text
from trainers.findings import Finding, Level

GROUPS = ("storage", "data", "model", "hardware")
# `rayscribe submit` waits no longer than this; checks that are not done by then are reported as skipped.
QUICK_TIMEOUT_S = 20.0
DEEP_TIMEOUT_S = 1800.0
QUICK_RECORDINGS_S = 2.0
DEEP_RECORDINGS_S = 120.0


class InspectionProcess:
    """One process that inspects; started first and read last, so that other checks run meanwhile."""

    def __init__(self, context: Context):
        """Starts it, unless the recipe refers to variables that only the nodes have."""
        assert context.spec is not None
        self._timeout_s = DEEP_TIMEOUT_S if context.deep else QUICK_TIMEOUT_S
        self._unknown = _unknown_variables(context.spec)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()
        if not self._unknown:
            self._process = subprocess.Popen(
                command_of(context),
                cwd=context.spec.root,
                env={
                    **os.environ,
                    **context.spec.job.runtime_env.env_vars,
                    CONFIG_VARIABLE: config_text(context.spec.config.model_dump(mode="json")),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def findings(self) -> list[Finding]:
        if self._process is None:
            reason = f"the recipe names {', '.join(self._unknown)}, which only the nodes know"
            return list(unreported([], GROUPS, reason))
        left_s = self._timeout_s - (time.monotonic() - self._began)
        try:
            output, errors = self._process.communicate(timeout=max(0.0, left_s))
            printed = errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
            reason = f"`task.py --verb check` ended with exit code {self._process.returncode}: {printed[-1]}"
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
            reason = f"not done within {self._timeout_s:.0f} s; `rayscribe preflight` waits longer"
        lines = output.decode(errors="replace").split("\n")
        return [*parse_findings(lines), *unreported(lines, GROUPS, reason)]

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def command_of(context: Context) -> list[str]:
    """The command line of the process."""
    assert context.spec is not None
    entry = entry_words(own_code=not context.spec.has_entry)[1:]
    seconds = DEEP_RECORDINGS_S if context.deep else QUICK_RECORDINGS_S
    command = [sys.executable, *entry, *check_arguments(GROUPS), "--light", "--recordings-s", f"{seconds:g}"]
    return command if context.on_this_machine else [*command, "--elsewhere"]


def check_arguments(groups: Sequence[str]) -> list[str]:
    """Arguments of task.py; it takes the config from its environment."""
    return ["--verb", "check", "--only", ",".join(groups)]


def parse_findings(lines: Iterable[str]) -> list[Finding]:
    """The findings among the lines that were printed."""
    findings = []
    for content in _objects(lines):
        if "check" in content:
            try:
                findings.append(Finding.model_validate(content))
            except ValidationError:
                continue
    return findings


def unreported(lines: Iterable[str], groups: Sequence[str], reason: str) -> Iterator[Finding]:
    """A skipped finding for each check of the groups, or group, that the lines have no finding of."""
    contents = list(_objects(lines))
    reported = {str(content["check"]) for content in contents if "check" in content}
    checks_of = {str(content["group"]): content.get("checks", []) for content in contents if "group" in content}
    for group in groups:
        for check in map(str, checks_of.get(group, [group])):
            if check not in reported:
                yield Finding(check=check, level=Level.SKIPPED, text=reason)


def _objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
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
    values = [value for _, _, value in path_values(spec.config.model_dump())]
    return sorted({name for value in values for name in variables_in(value)} - known)
