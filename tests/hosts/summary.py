"""A line of the tests' summary that says whether those on hosts ran: not every machine gives what they need."""

from typing import Any

from tests.hosts.conftest import FOLDER


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Counts the tests of this folder by outcome."""
    reports = {
        outcome: [item for item in terminalreporter.stats.get(outcome, []) if item.nodeid.startswith(FOLDER)]
        for outcome in ("passed", "failed", "error", "skipped")
    }
    if any(reports.values()):
        counts = ", ".join(f"{len(items)} {outcome}" for outcome, items in reports.items() if items)
        reasons = {item.longrepr[2] for item in reports["skipped"] if isinstance(item.longrepr, tuple)}
        terminalreporter.write_sep("-", f"hosts in network namespaces: {counts}")
        for reason in sorted(reasons):
            terminalreporter.write_line(reason)
