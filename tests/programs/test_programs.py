"""The programs under plain torchrun: what a launch of them is compared with."""

import re
from pathlib import Path

import pytest

from tests.programs.known_programs import CTC, DDP, OUT, PROGRAMS, STEPS, KnownProgram
from tests.programs.torchrun import Torchrun, undisturbed

FAKE_HABANA = Path(__file__).parent / "fake_habana"

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.xdist_group("programs")]


def run(folder: Path, *words: str, **environment: str) -> str:
    """The output of a program that ends well."""
    ranks = Torchrun(folder, words, **environment)
    assert ranks.wait() == 0, ranks.output
    return ranks.output


def interrupted(program: KnownProgram, folder: Path) -> Torchrun:
    """A program in the middle of its training, with a checkpoint."""
    ranks = Torchrun(program.copy_to(folder), program.holding(folder / "go"))
    ranks.wait_for(lambda: program.is_saved(folder / OUT))
    return ranks


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_training_goes_on_with_the_losses_of_an_undisturbed_one(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program, killed = PROGRAMS[name], tmp_path / "killed"
    losses = program.losses(undisturbed(name, tmp_path_factory) / OUT)
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1]
    ranks = interrupted(program, killed)
    ranks.kill_ranks()
    assert ranks.wait() == 1
    assert program.goes_on in run(killed, *program.command)
    assert program.losses(killed / OUT) == losses


def test_a_signal_has_it_save_in_the_middle_of_an_epoch(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stopped = tmp_path / "stopped"
    ranks = interrupted(DDP, stopped)
    ranks.terminate()
    assert ranks.wait() != 0
    assert len(re.findall(r"rank \d stopped at step \d+", ranks.output)) == 2, ranks.output
    assert DDP.goes_on in run(stopped, *DDP.command)
    assert DDP.losses(stopped / OUT) == DDP.losses(undisturbed("ddp", tmp_path_factory) / OUT)


def test_a_rank_that_gives_up_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    failing = ("--fail-at-step", "3", "--fail-rank", "1", "--exit-code", "7")
    ranks = Torchrun(DDP.copy_to(tmp_path / "failing"), [*DDP.command, *failing])
    assert ranks.wait() == 1
    assert "rank 1 gives up at step 3" in ranks.output
    assert re.search(r"exitcode\s*: 7", ranks.output), ranks.output


def test_without_habana_frameworks_the_program_refuses_to_use_gaudi(tmp_path: Path) -> None:
    ranks = Torchrun(CTC.copy_to(tmp_path / "gaudi"), [*CTC.command, "--use_habana"])
    assert ranks.wait() == 1
    assert "--use_habana: habana_frameworks is not installed on this machine" in ranks.output
    assert re.search(r"exitcode\s*: 2", ranks.output), ranks.output


def test_with_habana_frameworks_it_shows_the_environment_and_trains(tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(FAKE_HABANA), "HABANA_VISIBLE_MODULES": "0,1", "PT_HPU_LAZY_MODE": "1"}
    output = run(CTC.copy_to(tmp_path / "gaudi"), *CTC.command, "--use_habana", **variables)
    assert output.count("HPU environment: HABANA_VISIBLE_MODULES=0,1 PT_HPU_LAZY_MODE=1\n") == 2
    assert list(CTC.losses(tmp_path / "gaudi" / OUT)) == list(range(1, STEPS + 1))
