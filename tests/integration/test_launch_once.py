"""An unmodified program through `rayscribe launch`, from its command line to its kept output and its exit code."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli.app import app
from tests.integration.driver_process import RayHead
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

PROGRAM = """
import os, pathlib, sys

rank = int(os.environ["RANK"])
print(f"rank {rank} of {os.environ['WORLD_SIZE']} has {sys.argv[1:]}")
if rank == 0:
    pathlib.Path("out").mkdir()
    pathlib.Path("out/score.txt").write_text("4.2")
sys.exit(7 * rank)
"""


def test_a_program_has_two_ranks_and_ends_the_run_with_its_exit_code(
    ray_head: RayHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, runs = tmp_path / "program", tmp_path / "runs"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    where = ["--address", ray_head.dashboard, "--storage-path", str(runs), "--name", "launched-once"]
    how = ["--submit", "--follow", "--num-workers", "2", "--resources", "{CPU: 1}", "--sync-dir", "out"]
    program = ["torchrun", "--nproc_per_node", "2", "train.py", "--output", "out"]
    result = CliRunner().invoke(app, ["launch", *where, *how, "--set", "job.max_retries=0", "--", *program])
    assert result.exit_code == 7, result.output
    for rank in (0, 1):
        assert f"rank {rank} of 2 has ['--output', 'out']" in result.output
    assert "rank 1: the program train.py ended with exit code 7" in result.output
    kept = RunFolder(open_storage(f"{runs}/launched-once")).storage
    assert [entry.key.rpartition("/")[2] for entry in kept.list_files() if entry.key.endswith("score.txt")]
