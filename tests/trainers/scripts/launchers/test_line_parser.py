"""Lines as people have them, from the READMEs of the projects that they start, and what each says."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings import examples
from trainers.errors import ConfigError
from trainers.scripts.launchers.known_launchers import LAUNCHERS
from trainers.scripts.launchers.launcher import Launcher, LaunchLine, Workers
from trainers.scripts.launchers.line_parser import parse_line

quick = settings(max_examples=examples(200), deadline=None)
FOUR = Workers(4, 4, 4)
EIGHT = Workers(8, 8)
ONE = Workers(1, 1)

# Line, launcher, kind and name of the program, its first arguments, workers, device.
Row = tuple[str, str, str, str, Sequence[str], Workers | None, str | None]
LINES: tuple[Row, ...] = (
    # transformers, examples/pytorch/speech-recognition
    (
        "torchrun --nproc_per_node 8 run_speech_recognition_seq2seq.py --model_name_or_path=openai/whisper-small",
        *("torchrun", "script", "run_speech_recognition_seq2seq.py", ["--model_name_or_path=openai/whisper-small"]),
        *(Workers(8, 8, 8), None),
    ),
    (
        "python run_speech_recognition_ctc.py --chars_to_ignore , ? . ! - ';' --fp16",
        *("python", "script", "run_speech_recognition_ctc.py", ["--chars_to_ignore", ",", "?", ".", "!", "-", ";"]),
        *(ONE, None),
    ),
    (
        "OMP_NUM_THREADS=1 python -m torch.distributed.run --nproc_per_node 4 run_speech_recognition_ctc.py --a b",
        *("torchrun", "script", "run_speech_recognition_ctc.py", ["--a", "b"], FOUR, None),
    ),
    (
        "python3 -m torch.distributed.launch --nproc_per_node=4 --master_port 1234 run.py --output_dir out",
        *("torch.distributed.launch", "script", "run.py", ["--output_dir", "out"], FOUR, None),
    ),
    # optimum-habana, examples/speech-recognition
    (
        "python ../gaudi_spawn.py --world_size 8 --use_mpi run_speech_recognition_ctc.py --dataset_name librispeech",
        *("gaudi_spawn.py", "script", "run_speech_recognition_ctc.py", ["--dataset_name", "librispeech"]),
        *(EIGHT, "hpu"),
    ),
    (
        "PT_HPU_LAZY_MODE=1 python ../gaudi_spawn.py --world_size 8 --use_deepspeed "
        "run_speech_recognition_seq2seq.py --bf16",
        *("gaudi_spawn.py", "script", "run_speech_recognition_seq2seq.py", ["--bf16"], EIGHT, "hpu"),
    ),
    (
        "python ../gaudi_spawn.py --hostfile hosts --use_deepspeed --master_port 29500 run_clm.py --do_train",
        *("gaudi_spawn.py", "script", "run_clm.py", ["--do_train"], None, "hpu"),
    ),
    # SpeechBrain
    (
        "torchrun --nproc_per_node=4 train.py hparams.yaml --lr 1e-3",
        *("torchrun", "script", "train.py", ["hparams.yaml", "--lr", "1e-3"], FOUR, None),
    ),
    (
        "torchrun --standalone --nproc_per_node=4 ../train.py hparams/train.yaml --data_folder=/speech",
        *("torchrun", "script", "../train.py", ["hparams/train.yaml", "--data_folder=/speech"], FOUR, None),
    ),
    (
        "torchrun --nproc-per-node=2 --nnodes=2 --node-rank=0 --master-addr machine_1 --master-port 5555 e.py h.yaml",
        *("torchrun", "script", "e.py", ["h.yaml"], Workers(4, 4, 2), None),
    ),
    ("python train.py hparams/train.yaml", "python", "script", "train.py", ["hparams/train.yaml"], ONE, None),
    (
        "python -m torch.distributed.launch --nproc_per_node=4 train.py hparams.yaml --distributed_launch",
        *("torch.distributed.launch", "script", "train.py", ["hparams.yaml", "--distributed_launch"], FOUR, None),
    ),
    # abbreviated, as argparse takes them
    (
        "torchrun --nnode 2 --nproc 2 --master_p=5555 --stand train.py --nproc 9",
        *("torchrun", "script", "train.py", ["--nproc", "9"], Workers(4, 4, 2), None),
    ),
    ("deepspeed --num_g=4 --no_ssh t.py", "deepspeed", "script", "t.py", [], FOUR, "gpu"),
    # torch: elastic, rendezvous, modules and other programs
    (
        "torchrun --nnodes=1:4 --nproc-per-node=8 --max-restarts=3 --rdzv-id=j --rdzv-backend=c10d "
        "--rdzv-endpoint=host:29400 train.py --arg1",
        *("torchrun", "script", "train.py", ["--arg1"], Workers(8, 32, 8), None),
    ),
    ("torchrun --nproc_per_node gpu train.py", "torchrun", "script", "train.py", [], None, "gpu"),
    (
        "CUDA_VISIBLE_DEVICES=0,2 torchrun --nproc_per_node auto t.py",
        "torchrun",
        "script",
        "t.py",
        [],
        Workers(2, 2, 2),
        "gpu",
    ),
    ("torchrun --nproc_per_node=4 -m package.train --x", "torchrun", "module", "package.train", ["--x"], FOUR, None),
    ("torchrun --no_python --nproc_per_node=4 ./train.sh x", "torchrun", "executable", "./train.sh", ["x"], FOUR, None),
    # accelerate
    ("accelerate launch train.py --lr 1", "accelerate launch", "script", "train.py", ["--lr", "1"], None, None),
    (
        "accelerate launch --num_processes 4 --multi_gpu script.py --x y",
        *("accelerate launch", "script", "script.py", ["--x", "y"], Workers(4, 4), "gpu"),
    ),
    (
        "accelerate launch --multi_gpu --mixed_precision=fp16 --num_processes=16 --num_machines 2 --machine-rank 0 "
        "--main_process_ip 10.0.0.1 --main_process_port 29500 t.py",
        *("accelerate launch", "script", "t.py", [], Workers(16, 16, 8), "gpu"),
    ),
    (
        "accelerate launch --cpu -m package.train --x",
        "accelerate launch",
        "module",
        "package.train",
        ["--x"],
        ONE,
        "cpu",
    ),
    ("accelerate-launch --num_processes=8 t.py", "accelerate launch", "script", "t.py", [], EIGHT, None),
    (
        "python -m accelerate.commands.launch --num-processes=8 t.py -m 1",
        "accelerate launch",
        "script",
        "t.py",
        ["-m", "1"],
        EIGHT,
        None,
    ),
    # DeepSpeed
    (
        "deepspeed --num_gpus 4 train.py --deepspeed ds.json",
        *("deepspeed", "script", "train.py", ["--deepspeed", "ds.json"], FOUR, "gpu"),
    ),
    (
        "deepspeed --hostfile=myhostfile --num_nodes=2 --num_gpus=8 --no_ssh --node_rank=0 --master_addr=a m.py --x",
        *("deepspeed", "script", "m.py", ["--x"], Workers(16, 16, 8), "gpu"),
    ),
    ("deepspeed --hostfile=hosts m.py", "deepspeed", "script", "m.py", [], None, "gpu"),
    ("deepspeed --include localhost:1,2 m.py", "deepspeed", "script", "m.py", [], Workers(2, 2), "gpu"),
    ("deepspeed --include worker-0@worker-1:0,2 m.py", "deepspeed", "script", "m.py", [], None, "gpu"),
    ("CUDA_VISIBLE_DEVICES=0,1 deepspeed m.py", "deepspeed", "script", "m.py", [], Workers(2, 2, 2), "gpu"),
    (
        "DS_ACCELERATOR=cpu deepspeed --num_accelerators 2 m.py",
        "deepspeed",
        "script",
        "m.py",
        [],
        Workers(2, 2, 2),
        "cpu",
    ),
    (
        "deepspeed --module --num_gpus=4 package.train -e 1",
        "deepspeed",
        "module",
        "package.train",
        ["-e", "1"],
        FOUR,
        "gpu",
    ),
    # MPI
    (
        "mpirun -np 8 -H a:4,b:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib "
        "python train.py --epochs 3",
        *("mpirun", "script", "train.py", ["--epochs", "3"], EIGHT, None),
    ),
    ("mpirun --allow-run-as-root --host a:4,b:4 python3 train.py", "mpirun", "script", "train.py", [], EIGHT, None),
    ("mpiexec -n 4 -ppn 2 -genv A 1 ./train.py", "mpirun", "script", "./train.py", [], Workers(4, 4, 2), None),
    # Slurm
    (
        "srun --nodes=2 --ntasks-per-node=4 --gres=gpu:a100:4 --cpus-per-task=8 -p long python train.py --x",
        *("srun", "script", "train.py", ["--x"], Workers(8, 8, 4), "gpu"),
    ),
    ("srun -N1-4 --kill-on-bad-exit=1 python train.py", "srun", "script", "train.py", [], Workers(1, 4, 1), None),
    (
        "srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc_per_node 8 --rdzv_id 17 train.py --x",
        *("torchrun", "script", "train.py", ["--x"], Workers(16, 16, 8), None),
    ),
    # The program alone
    ("CUDA_VISIBLE_DEVICES=0,1 python train.py a", "python", "script", "train.py", ["a"], ONE, "gpu"),
    ("env CUDA_VISIBLE_DEVICES= A=1 python3.11 train.py", "python", "script", "train.py", [], ONE, "cpu"),
    ("python -u -W ignore -m package.module --lr 1", "python", "module", "package.module", ["--lr", "1"], ONE, None),
    ("train.py --lr 1", "python", "script", "train.py", ["--lr", "1"], ONE, None),
    ("/opt/venv/bin/torchrun --nproc_per_node 4 /srv/a.py", "torchrun", "script", "/srv/a.py", [], FOUR, None),
    ("./train.sh a", "python", "executable", "./train.sh", ["a"], ONE, None),
)


def parsed(line: str) -> LaunchLine:
    return parse_line(shlex.split(line))


@pytest.mark.parametrize("row", LINES, ids=lambda row: row[0])
def test_a_line_says_its_program_and_its_workers(row: Row) -> None:
    text, launcher, kind, name, arguments, workers, device = row
    line = parsed(text)
    assert (line.launcher, line.program.kind, line.program.name) == (launcher, kind, name)
    assert list(line.program.arguments[: len(arguments)]) == arguments
    assert (line.workers, line.device) == (workers, device)


@pytest.mark.parametrize(
    ("line", "environment"),
    [
        ("A=1 B='x y' torchrun --rdzv_id 7 --role r t.py", {
            "A": "1", "B": "x y", "TORCHELASTIC_RUN_ID": "7", "ROLE_NAME": "r",
        }),
        ("PYTHONUNBUFFERED=0 python -u -OO -W ignore -W error::X -X dev t.py", {
            "PYTHONUNBUFFERED": "1", "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "ignore,error::X", "PYTHONDEVMODE": "1",
        }),
        ("A=1 mpirun -x A=2 -x PATH -genv C 3 python t.py", {"A": "2", "C": "3"}),
        ("srun --export=ALL,A=1 env B=2 python t.py", {"A": "1", "B": "2"}),
        ("python -u -m torch.distributed.run t.py", {"PYTHONUNBUFFERED": "1"}),
        ("CUDA_VISIBLE_DEVICES=0 MASTER_PORT=1 WORLD_SIZE=2 torchrun t.py", {}),
        ("mpirun -x CUDA_VISIBLE_DEVICES=0 env RANK=1 python t.py", {}),
    ],
)  # fmt: skip
def test_variables_of_a_line_are_the_programs(line: str, environment: Mapping[str, str]) -> None:
    assert parsed(line).environment == environment


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("python -m torch.distributed.launch t.py", "--local-rank"),
        ("python -m torch.distributed.launch --use_env t.py", None),
        ("torchrun t.py", None),
        ("deepspeed --num_gpus 1 t.py", "--local_rank"),
        ("deepspeed --num_gpus 1 --no_local_rank t.py", None),
        ("python ../gaudi_spawn.py --world_size 8 --use_deepspeed t.py", None),
    ],
)
def test_a_launcher_may_tell_its_program_the_rank_by_an_option(line: str, option: str | None) -> None:
    assert parsed(line).local_rank_option == option


def test_restarts_are_retries() -> None:
    assert parsed("torchrun --max_restarts 3 t.py").max_retries == 3
    assert parsed("accelerate launch --max-restarts=0 t.py").max_retries == 0
    assert parsed("torchrun t.py").max_retries is None


def test_the_interpreter_is_the_one_of_the_line() -> None:
    assert parsed("/opt/bin/python3.12 t.py").interpreter == "/opt/bin/python3.12"
    assert parsed("srun python3 t.py").interpreter == "python3"
    assert parsed("torchrun t.py").interpreter is None


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("torchrun --master_port 1 --nproc_per_node 2 t.py", "torchrun --master_port 1: Ray Train starts all workers"),
        ("torchrun --log-dir logs t.py", "torchrun --log_dir logs: the output of each worker"),
        ("torchrun --node_rank 1 t.py", "torchrun --node_rank 1: Ray Train starts all workers by one line"),
        ("CUDA_VISIBLE_DEVICES=3 python t.py", "CUDA_VISIBLE_DEVICES=3: Ray decides which device"),
        ("RANK=0 python t.py", "RANK=0: it is set for each worker"),
        (
            "accelerate launch --zero_stage 2 t.py",
            "accelerate launch --zero_stage 2: it is read only with --use_deepspeed",
        ),
        ("accelerate launch --gpu_ids 0,1 t.py", "accelerate launch --gpu_ids 0,1: Ray decides"),
        (
            "deepspeed --hostfile h --num_nodes 2 --num_gpus 8 t.py",
            "deepspeed --hostfile h: Ray Train starts all workers",
        ),
        ("mpirun -np 2 -x LD_LIBRARY_PATH python t.py", "mpirun -x LD_LIBRARY_PATH: give its value"),
        ("mpirun -np 2 -mca btl tcp python t.py", "mpirun --mca btl tcp: the workers communicate by torch.distributed"),
        ("srun -p long python t.py", "srun --partition long: the nodes are the Ray cluster's"),
        ("srun -n 2 python t.py", "srun: RANK, WORLD_SIZE, LOCAL_RANK"),
        ("python gaudi_spawn.py --world_size 2 --use_mpi t.py", "gaudi_spawn.py --use_mpi: Ray Train starts"),
    ],
)
def test_what_has_no_effect_is_named(line: str, note: str) -> None:
    assert [text for text in parsed(line).notes if text.startswith(note)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("torchrun --nproc_per_noed 4 t.py", "--nproc_per_noed: there is no such option; did you mean --nproc_per_n"),
        ("torchrun --xyz 1 t.py", "torchrun --xyz: there is no such option; options of the script follow it"),
        ("torchrun --n 4 t.py", "torchrun: ambiguous option: --n could match --nnodes, --nproc_per_node"),
        ("accelerate launch --num_proc 4 t.py", "--num_proc: there is no such option; did you mean --num_processes?"),
        ("deepspeed --no_ss t.py", "deepspeed: ambiguous option: --no_ss could match --no_ssh, --no_ssh_check"),
        ("deepspeed --num-gpus 4 t.py", "deepspeed --num-gpus: there is no such option; did you mean --num_gpus?"),
        ("torchrun --nnodes 4:1 t.py", "torchrun --nnodes 4:1: write a number, or the fewest and the most"),
        ("torchrun --nproc_per_node xpu t.py", "xpu: write a whole number of at least 1, or one of gpu"),
        ("torchrun --nproc_per_node 0 t.py", "torchrun --nproc_per_node 0: write a whole number of at least 1"),
        ("torchrun --max_restarts x t.py", "torchrun --max_restarts x: write a whole number of at least 0"),
        ("torchrun --max_restarts -1 t.py", "torchrun --max_restarts -1: write a whole number of at least 0"),
        ("torchrun --nproc_per_node", "torchrun: argument --nproc_per_node: expected one argument"),
        ("torchrun --nproc_per_node 4", "torchrun: it names no program"),
        ("torchrun --virtual-local-rank t.py", "torchrun --virtual_local_rank: the workers of a node"),
        ("torchrun -m --no_python t.py", "torchrun --module and --no_python exclude each other"),
        ("PET_NNODES=2 torchrun t.py", "torchrun PET_NNODES=2: write it as the option --nnodes"),
        ("python -m torch.distributed.launch --no_python t", "--no_python needs --use_env"),
        ("accelerate launch --config_file a.yaml t.py", "accelerate launch --config_file a.yaml: the file is not read"),
        ("accelerate launch --tpu t.py", "accelerate launch --tpu: TPUs are not supported"),
        ("accelerate launch --use_megatron_lm t.py", "ACCELERATE_USE_MEGATRON_LM=true"),
        ("accelerate launch --megatron-lm-tp-degree 2 t.py", "--megatron_lm_tp_degree 2: set its variable in front"),
        ("accelerate launch --cpu --multi_gpu t.py", "--cpu and --multi_gpu exclude each other"),
        ("accelerate launch --num_processes 3 --num_machines 2 t.py", "give a multiple of --num_machines 2"),
        ("accelerate launch --mixed_precision bf61 t.py", "--mixed_precision bf61: write one of no, fp16, bf16"),
        ("accelerate launch --num_processes 0 t.py", "--num_processes 0: write a whole number of at least 1"),
        ("accelerate config", "accelerate: this launcher is not known: did you mean accelerate-launch?"),
        ("deepspeed --exclude a:0 t.py", "deepspeed --exclude a:0: Ray decides"),
        ("deepspeed --autotuning run t.py", "deepspeed --autotuning run: leave it out"),
        ("deepspeed --include a:0 --num_gpus 2 t.py", "deepspeed --include and --num_gpus exclude each other"),
        ("python gaudi_spawn.py --use_mpi --use_deepspeed t.py", "--use_mpi and --use_deepspeed exclude each other"),
        ("mpirun -np 2 --wdir /x python t.py", "mpirun --wdir /x: the workers start in the package of the run"),
        ("srun --pty python t.py", "srun --pty: a run has no terminal"),
        ("srun --nodes x python t.py", "srun --nodes x: write a number"),
        ("srun --container-image=i python t.py", "srun --container-image i: the container of workers"),
        ("python -c pass", "python -c pass: write the program into a file"),
        ("python -X y t.py", "python -X y: of these options there are faulthandler"),
        ("python", "python: it names no program"),
        ("torchun t.py", "torchun: this launcher is not known: did you mean torchrun?"),
        ("horovodrun -np 2 python t.py", "horovodrun: this launcher is not known: give the line of one that is"),
        ("A=1", "the line is empty"),
        ("env -u A python t.py", "env -u: leave options of env out"),
        ("python -", "-: no program"),
        ("uv run torchrun --nproc_per_node 2 t.py", "every worker would run uv torchrun, and"),
        ("nohup accelerate launch t.py", "every worker would run nohup accelerate"),
        ("uv run python -m torch.distributed.run t.py", "every worker would run uv python"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(line)
    assert problem in str(caught.value)


def test_all_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("accelerate launch --tpu --config_file x --unknown t.py --tpu")
    assert len(str(caught.value).splitlines()) == 3


def test_keys_are_in_no_message() -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("accelerate launch --aws_secret_access_key hunter2 t.py")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_each_option_is_one_of_four_and_says_why(launcher: Launcher) -> None:
    spellings = Counter(name for option in launcher.options for name in option.names)
    assert [spelling for spelling, count in spellings.items() if count > 1] == []
    for option in launcher.options:
        assert bool(option.text) == (option.outcome != "ours"), option.name


WORDS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(
        ["--", "-", "", "-m", "--nproc_per_node", "--num_gpus=2", "--lo", "-n", "-np", "--tpu", "A=1", "-x"]
    ),
)
LAUNCHES = (
    *("torchrun --nproc_per_node 2", "torchrun --standalone -r 3", "python -m torch.distributed.launch", "deepspeed"),
    *("accelerate launch --cpu", "python gaudi_spawn.py --world_size 8 --use_mpi", "mpirun -np 2 -mca a b python"),
    *("srun -n 4 --label python", "srun torchrun --nnodes 2", "python -u", "A=1 B= torchrun --", "env A=1"),
)


@quick
@given(
    launch=st.sampled_from(LAUNCHES), script=st.sampled_from(["t.py", "a/b c.py", "é.py"]), arguments=st.lists(WORDS)
)
def test_the_programs_arguments_are_those_of_the_line(launch: str, script: str, arguments: list[str]) -> None:
    program = parse_line([*launch.split(), script, *arguments]).program
    assert (program.kind, program.name, list(program.arguments)) == ("script", script, arguments)


@quick
@given(arguments=st.lists(WORDS))
def test_so_are_those_of_a_module(arguments: list[str]) -> None:
    for launch in ("python -m a.b", "torchrun -m a.b", "deepspeed --module a.b", "accelerate launch -m a.b"):
        program = parse_line([*launch.split(), *arguments]).program
        assert (program.kind, program.name, list(program.arguments)) == ("module", "a.b", arguments)


def test_what_starts_python_alone_is_run_by_each_worker_as_it_is() -> None:
    program = parse_line(["uv", "run", "python", "t.py", "--backend", "deep"]).program
    assert (program.kind, program.name) == ("executable", "uv")
