"""What a preflight prints: nothing twice, and how it ended."""

from jobs.preflight.runner import lines
from trainers.findings import Finding, Level


def finding(check: str, level: Level, text: str) -> Finding:
    return Finding(check=check, level=level, text=text)


def test_checks_that_were_skipped_for_one_reason_are_one_line_and_the_last_one_counts() -> None:
    found = [
        finding("storage", Level.OK, "can be written"),
        finding("gang", Level.SKIPPED, "no cluster is known"),
        finding("manifests", Level.ERROR, "data.train: a.csv: no such file"),
        finding("versions", Level.SKIPPED, "no cluster is known"),
        finding("tokens", Level.SKIPPED, "the model could not be opened"),
    ]
    assert [*lines(found)] == [
        "✓ storage: can be written",
        "✗ manifests: data.train: a.csv: no such file",
        "- gang, versions: no cluster is known",
        "- tokens: the model could not be opened",
        "preflight: 1 passed · 0 warnings · 1 error · 3 skipped",
    ]
