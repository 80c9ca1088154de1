"""Commands of the pages by task that need no Ray and no network are run as they stand."""

import shutil
from pathlib import Path

import pytest

from jobs.cli import main
from tests.docs.page_commands import commands_of, scripts_of
from tests.test_architecture import ROOT
from tests.trainers.synthetic import write_corpus

PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
SPECS = ROOT / "cluster_configs" / "specs"
# Under which name each page has a reader copy a spec.
COPIES = {
    "hosts.yaml": "local",
    "cloud.yaml": "aws",
    "kubernetes.yaml": "kuberay",
    "my-slurm.yaml": "slurm",
    "my-sge.yaml": "sge",
}


def is_offline(words: list[str]) -> bool:
    if words[0] != "rayscribe":
        return False
    return (
        words[1] in ("recipes", "import-command")
        or words[1:3] in (["cluster", "validate"], ["cluster", "render"])
        or (words[1] == "launch" and "--write" in words)
        or (words[1] == "init" and "speech.csv" in words)
    )


def commands_in(page: Path) -> list[list[str]]:
    return [words for script in scripts_of(page) for words in commands_of(script) if is_offline(words)]


@pytest.mark.parametrize("page", [page for page in PAGES if commands_in(page)], ids=lambda page: page.stem)
def test_commands_that_need_no_ray_do_what_they_should(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, spec in COPIES.items():
        shutil.copy(SPECS / f"{spec}.yaml", name)
    texts = [f"text number {number}" for number in range(12)]
    write_corpus(tmp_path, texts, durations_s=[0.5] * len(texts), name="speech")
    for words in commands_in(page):
        assert main(words[1:]) == 0, f"{' '.join(words)}\n{capsys.readouterr().err}"
        written = [Path(words[at + 1]) for at, word in enumerate(words) if word in ("--out", "--write")]
        assert all(path.stat().st_size for path in written)
        assert written or capsys.readouterr().out


def test_there_are_such_commands() -> None:
    assert sum(len(commands_in(page)) for page in PAGES) > 10
