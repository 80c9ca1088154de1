import sys
from pathlib import Path

from trainers.config.parts.script_part import ScriptPart
from trainers.scripts.program import program_environment, program_words

WORK = Path("/node/package")
UNPACKED = "/tmp/ray/session_1/runtime_resources/py_modules_files/_ray_pkg_1"


def part(**fields: object) -> ScriptPart:
    return ScriptPart.model_validate({"command": ["train.py"], **fields})


def words(command: list[str], local_rank: int | None = 1, **fields: object) -> list[str]:
    return program_words(part(command=command, **fields), command, WORK, local_rank)


def test_python_files_and_modules_are_run_by_the_interpreter() -> None:
    assert words(["train.py", "--lr", "1"]) == [sys.executable, "train.py", "--lr", "1"]
    assert words(["-m", "a.b", "x"], python="/opt/venv/bin/python") == ["/opt/venv/bin/python", "-m", "a.b", "x"]
    assert words(["train.py"], python="venv/bin/python")[0] == "/node/package/venv/bin/python"
    assert words(["train.py"], python="python3.12")[0] == "python3.12"
    assert words(["./run", "a"]) == ["./run", "a"]


def test_deepspeeds_option_comes_before_the_programs_own() -> None:
    option = "--local_rank"
    assert words(["train.py", "a"], local_rank_option=option)[1:] == ["train.py", "--local_rank=1", "a"]
    assert words(["-m", "a.b", "a"], local_rank_option=option)[1:] == ["-m", "a.b", "--local_rank=1", "a"]
    assert words(["train.py", "a"], None, local_rank_option=option)[1:] == ["train.py", "a"]


def test_a_program_sees_the_node_the_recipe_and_torchrun_and_nothing_of_ours() -> None:
    inherited = {
        "HOME": "/root",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAYSCRIBE_CONFIG": "{}",
        "__MODULE": "x",
        "LR": "1",
        "RANK": "0",
        "PYTHONPATH": f"{UNPACKED}:/opt/lib",
    }
    seen = program_environment(inherited, {"LR": "2", "PYTHONPATH": "src:/abs"}, {"RANK": "3"}, WORK)
    assert seen == {
        "HOME": "/root",
        "LR": "2",
        "RANK": "3",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/node/package:/node/package/src:/abs:/opt/lib",
    }
