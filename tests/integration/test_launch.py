"""Unmodified programs through `rayscribe launch` on two nodes that share no folder but the storage."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.integration.driver_process import RayHead
from tests.integration.launch_user import LaunchUser, same_losses, two_nodes
from tests.programs.known_programs import CTC, DATA, DDP, LOGGED_STEP, OUT, PROGRAMS, STEPS
from tests.programs.torchrun import undisturbed

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
FAKE_HABANA = Path(__file__).parents[1] / "programs" / "fake_habana"
# A Gaudi for each worker, whose software is in the package.
ON_GAUDI = ("--accelerator", "hpu", "--set", "script.hpu_mode=lazy", "--env", "PYTHONPATH=fake_habana")
# What `run_on_main` writes on one node, no other node has; so that it is prepared once for all of them.
PREPARED = ("--prepare", f"python digits_prepare.py {DATA} {{data}}")
OPTIONS: Mapping[str, tuple[str, ...]] = {"recipe": PREPARED}
ARGUMENTS: Mapping[str, tuple[str, ...]] = {"recipe": ("--manifest_folder={data}", "--skip_prep=true")}
Losses = Callable[[str], Mapping[int, float]]
Users = Callable[[str, str], LaunchUser]


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    with two_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """The losses of a program under torchrun, undisturbed."""
    return lambda name: PROGRAMS[name].losses(undisturbed(name, tmp_path_factory) / OUT)


@pytest.fixture
def user(head: RayHead, tmp_path: Path, s3_bucket: str, s3_endpoint: str) -> Users:
    """A user of a program by its name, with a name for the run."""
    return lambda program, name: LaunchUser(PROGRAMS[program], head, tmp_path, name, (s3_bucket, s3_endpoint))


def test_a_stop_costs_no_step_and_exit_code_7_is_the_run_s(user: Users, plain: Losses) -> None:
    run = user("ddp", "ended")
    command = [*DDP.holding(run.file), *f"--fail-at-step {STEPS} --fail-rank 1 --exit-code 7".split()]
    line = ["torchrun", "--nproc_per_node", "2", *command]
    code, output = run.launch(line, "--write", "run.yaml", "--set", "job.max_retries=0")
    assert code == 0, output
    assert yaml.safe_load((run.folder / "run.yaml").read_text())["script"]["command"] == command
    code, output = run.call("submit", "run.yaml", "--address", run.head.dashboard)
    assert code == 0, output
    run.until_held()
    code, output = run.call("stop", run.name, "--wait")
    assert code == 0 and "STOPPED" in output, output
    # In the middle of the third epoch.
    assert run.journal.read().checkpoints[-1].step == 3
    assert set(re.findall(r"rank (\d) stopped at step 10", run.logs)) == {"0", "1"}, run.logs
    run.file.touch()
    code, output = run.call("resume", run.name, "--follow")
    assert code == 7, output
    assert "resumed from out/checkpoint_epoch_3: epoch 3, 2 of its steps" in output
    assert "rank 1: the program ddp.py ended with exit code 7:\n  " in output
    assert f"  rank 1 gives up at step {STEPS}" in output
    status = run.call("status", run.name)[1]
    assert "FAILED" in status and "exit code" in status
    # Of both attempts.
    made = {(int(step), float(loss)) for step, loss in LOGGED_STEP.findall(run.logs)}
    assert made == {(step, loss) for step, loss in plain("ddp").items() if step < STEPS}


def test_a_program_for_gaudi_runs_where_ray_has_its_resource(user: Users, plain: Losses, tmp_path: Path) -> None:
    run = user("ctc", "gaudi")
    shutil.copytree(FAKE_HABANA, run.folder / "fake_habana")
    code, output = run.launch([*CTC.command, "--use_habana"], "--submit", "--follow", *ON_GAUDI)
    assert code == 0, output
    for rank in range(2):
        first = "HPU environment: HABANA_VISIBLE_MODULES=0 PT_HPU_ENABLE_LAZY_COLLECTIVES=true PT_HPU_LAZY_MODE=1"
        assert f"[rank {rank}] {first}" in output
    assert "WER " in run.call("status", "gaudi")[1]
    out = run.outputs(tmp_path / "kept")
    assert same_losses(CTC.losses(out), plain("ctc"))
    assert (out / "model.safetensors").is_file()
    assert [item.step for item in run.journal.read().checkpoints] == [10, 20]


def kill_both(run: LaunchUser) -> None:
    run.kill_worker()
    run.kill_driver()


KILLS: Mapping[str, Callable[[LaunchUser], None]] = {
    "program": LaunchUser.kill_program,
    "worker": LaunchUser.kill_worker,
    "driver": LaunchUser.kill_driver,
    "worker and driver": kill_both,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_goes_on_from_its_last_checkpoint_whatever_is_killed(
    user: Users, plain: Losses, tmp_path: Path, name: str
) -> None:
    run = user(name, f"{name}-killed")
    command = [*run.program.holding(run.file), *ARGUMENTS.get(name, ())]
    code, output = run.launch(command, "--submit", *OPTIONS.get(name, ()))
    assert code == 0, output
    goes_on = run.until_held()
    if name != "ddp":
        # Of what ddp.py logs, nobody knows the format.
        run.until(lambda: bool(re.search(r"step \d+.* loss \d", run.call("status", run.name)[1])), "loss")
    for times, (what, kill) in enumerate(KILLS.items(), start=1):
        kill(run)
        run.until_continued(goes_on, times, f"start after the end of its {what}")
    status = run.finish()
    assert "restart within the attempt, after: rank " in run.call("events", run.name)[1]
    assert name == "ddp" or "WER " in status
    assert same_losses(run.program.losses(run.outputs(tmp_path / "kept")), plain(name))
