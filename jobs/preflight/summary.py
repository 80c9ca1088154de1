"""Findings as lines for a person."""

from collections import Counter
from collections.abc import Iterator, Sequence

from trainers.config.wording import counted
from trainers.findings import Finding, Level

SIGNS = {Level.OK: "✓", Level.WARNING: "!", Level.ERROR: "✗", Level.SKIPPED: "-"}


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding, one for all checks that were skipped for one reason, and one that counts them."""
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level == Level.SKIPPED:
            skipped.setdefault(finding.text, []).append(finding.check)
        else:
            yield line(finding)
    yield from (
        f"{SIGNS[Level.SKIPPED]} {', '.join(dict.fromkeys(checks))}: {text}" for text, checks in skipped.items()
    )
    count = Counter(finding.level for finding in findings)
    parts = [
        f"{count[Level.OK]} passed",
        counted(count[Level.WARNING], "warning"),
        counted(count[Level.ERROR], "error"),
    ]
    yield f"preflight: {' · '.join([*parts, f'{count[Level.SKIPPED]} skipped'])}"


def line(finding: Finding) -> str:
    """Its sign, the name of its check, and what it found."""
    return f"{SIGNS[finding.level]} {finding.check}: {finding.text}"
