"""What is said of launchers is what the installed ones do: their options, commands, and variables of the program."""

import argparse
import os
import shlex
from pathlib import Path

import pytest
from accelerate.commands import launch as accelerate_command
from accelerate.utils import launch as accelerate_variables
from torch.distributed import launch as torch_launch
from torch.distributed import run as torch_run

from trainers.scripts.launchers.known_launchers import ACCELERATE, DEEPSPEED, TORCH_LAUNCH, TORCHRUN
from trainers.scripts.launchers.launcher import Launcher, with_underscores
from trainers.scripts.launchers.line_parser import parse_line


def names_of(launcher: Launcher) -> set[str]:
    """Each name in each spelling that the launcher's lines may have."""
    names = {name for option in launcher.options for name in option.names}
    dashed = {f"--{name[2:].replace('_', '-')}" for name in names if name.startswith("--")}
    return names | dashed if launcher.spelled is with_underscores else names


def names_in(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings} - {"-h", "--help"}


def parser_of(parse: object, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """The parser that a function makes for itself."""
    made: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda self, args=None: made.append(self))
    parse([])  # type: ignore[operator]
    return made[0]


def test_torchrun_has_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of(TORCHRUN) == names_in(torch_run.get_args_parser())
    assert names_of(TORCH_LAUNCH) == names_in(parser_of(torch_launch.parse_args, monkeypatch))


def test_accelerate_launch_has_these_options() -> None:
    assert names_of(ACCELERATE) == names_in(accelerate_command.launch_command_parser())


def test_deepspeed_has_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = pytest.importorskip("deepspeed.launcher.runner")
    assert names_of(DEEPSPEED) == names_in(parser_of(runner.parse_args, monkeypatch))


@pytest.mark.parametrize(
    "line",
    [
        "--nproc_per_node 4 t.py --lr 1 --nproc_per_node 9",
        "--nnodes 1:3 --nproc-per-node=2 --max_restarts 2 -m a.b -m c",
        "--nproc-per-node cpu t.py",
        "--nnod 1:3 --nproc_p=2 --max_r 2 --mod a.b --mod c",
        "--rdzv_backend c10d --rdzv_endpoint a:1 --rdzv_id 7 --role r --no_python ./t.sh a",
        "--standalone -r 3 -t 1 --log_dir x t.py x y",
    ],
)
@pytest.mark.parametrize("name", ["torchrun", "python -m torch.distributed.launch"])
def test_torchrun_would_start_this(name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # It makes the folder of its logs.
    monkeypatch.chdir(tmp_path)
    launch = torch_run if name == "torchrun" else torch_launch
    if launch is torch_launch and "--no_python" in line:
        line = f"--use_env {line}"
    words = shlex.split(line)
    config, command, arguments = torch_run.config_from_args(launch.parse_args(words))
    found = parse_line([*name.split(), *words])
    rank = [f"{found.local_rank_option}=${{local_rank}}"] if found.local_rank_option else []
    start = {"module": ["-u", "-m", found.program.name], "script": ["-u", found.program.name], "executable": []}
    assert arguments == [*start[found.program.kind], *rank, *found.program.arguments]
    assert found.program.kind != "executable" or command == found.program.name
    assert config.max_restarts == (found.max_retries or 0)
    if found.workers is not None:
        assert (found.workers.min, found.workers.max) == tuple(
            nodes * config.nproc_per_node for nodes in (config.min_nodes, config.max_nodes)
        )
    assert found.environment.get("TORCHELASTIC_RUN_ID", "none") == config.run_id
    assert found.environment.get("ROLE_NAME", "default") == config.role


@pytest.mark.parametrize(
    "line",
    [
        "--cpu --num_processes 1 t.py",
        "--num_processes 4 --multi_gpu --mixed_precision bf16 --debug t.py",
        "--num_processes 4 --multi_gpu --dynamo_backend inductor --dynamo_mode max-autotune --dynamo_use_dynamic t.py",
        "--num_processes 2 --num_machines 1 --num_cpu_threads_per_process 6 --enable_cpu_affinity t.py",
        "--num_processes 8 --use_deepspeed t.py",
        "--num_processes 8 --use_deepspeed --zero_stage 3 --gradient_accumulation_steps 4 --gradient_clipping 1.0 "
        "--offload_optimizer_device CPU --zero3_init_flag True --zero3_save_16bit_model true "
        "--deepspeed_config_file a.json --deepspeed_moe_layer_cls_names A,B t.py",
        "--num_processes 8 --use_fsdp t.py",
        "--num_processes 8 --use_fsdp --fsdp_version 2 --fsdp_offload_params True "
        "--fsdp_sharding_strategy HYBRID_SHARD --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
        "--fsdp_transformer_layer_cls_to_wrap Layer "
        "--fsdp_state_dict_type SHARDED_STATE_DICT --fsdp_backward_prefetch BACKWARD_PRE --fsdp_min_num_params 5 t.py",
    ],
)
def test_accelerate_launch_would_set_these_variables(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(accelerate_command, "default_config_file", str(tmp_path / "none.yaml"))
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_", "OMP_", "KMP_"))]:
        monkeypatch.delenv(name)
    words = shlex.split(line)
    parser = accelerate_command.launch_command_parser()
    arguments, _, _ = accelerate_command._validate_launch_command(parser.parse_args(words))
    arguments.deepspeed_fields_from_accelerate_config = ""
    if arguments.use_deepspeed:
        _, variables = accelerate_variables.prepare_deepspeed_cmd_env(arguments)
    elif arguments.multi_gpu or arguments.use_fsdp:
        variables = accelerate_variables.prepare_multi_gpu_env(arguments)
    else:
        _, variables = accelerate_variables.prepare_simple_launcher_cmd_env(arguments)
    # The place of a worker is Ray Train's to say, and how many threads it has, unless the line says it.
    ours = {"MASTER_ADDR", "MASTER_PORT", "PYTHONPATH"}
    if "--num_cpu_threads_per_process" not in line:
        ours.add("OMP_NUM_THREADS")
    expected = {name: value for name, value in variables.items() if os.environ.get(name) != value and name not in ours}
    assert parse_line(["accelerate", "launch", *words]).environment == expected
