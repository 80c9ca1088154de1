import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainers.run_folder import worker_logs
from trainers.run_folder.attempt_status import worker_log_key
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.worker_logs import MASK, TailedFile, copied_log, finish_logs
from trainers.storage import open_storage

ROOT = Path(__file__).parents[3]
KEY = worker_log_key(2, 1, "abc")
SECRET = "sesame-0815"
DEADLINE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder, on a node whose own disk is empty."""
    (tmp_path / "node").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return RunFolder(open_storage(str(tmp_path / "run")))


@pytest.fixture
def start(folder: RunFolder, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a process whose stdout and stderr are files, as Ray's workers have them."""
    started = []

    def run(what: str) -> subprocess.Popen[bytes]:
        secrets = {"TOKEN": SECRET, "RAYSCRIBE_SECRETS": json.dumps({"TOKEN": {"env": "TOKEN"}})}
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.trainers.run_folder.log_process", folder.url, what],
                cwd=ROOT,
                env={**os.environ, **secrets},
                stdout=out,
                stderr=err,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def node_files(tmp_path: Path) -> list[str]:
    """What is left of logs on the node's own disk."""
    return [path.name for path in (tmp_path / "node").rglob("*") if path.is_file()]


def kept(folder: RunFolder) -> str:
    return folder.storage.read_bytes(KEY).decode()


@pytest.mark.parametrize("what", ["words", "raises"])
def test_everything_that_is_printed_in_the_block_is_kept(
    folder: RunFolder, start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path, what: str
) -> None:
    start(what).wait(DEADLINE_S)
    lines = kept(folder).splitlines()
    for words in ("from Python", "to stderr", "to the descriptor: č", "from C", "the token is *** and no other"):
        assert lines.count(words) == 1, lines
    assert "before the block" not in lines
    assert ("no end of line" in lines) == (what == "words")
    # Ray's own files have it all, as they would without us.
    assert "from C" in (tmp_path / "out").read_text()
    assert SECRET in (tmp_path / "out").read_text()
    assert not node_files(tmp_path)


def test_a_worker_that_prints_nothing_keeps_an_empty_log(
    folder: RunFolder, start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    start("nothing").wait(DEADLINE_S)
    assert kept(folder) == ""
    assert not node_files(tmp_path)


@pytest.mark.integration
def test_a_living_process_is_followed_and_a_killed_one_loses_no_last_word(
    folder: RunFolder, start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start("waits")
    wait_for(lambda: Path(folder.url, "ready").exists() and folder.storage.exists(KEY))
    wait_for(lambda: "the token is" in kept(folder))
    before = kept(folder)
    finish_logs(folder)
    assert node_files(tmp_path), "another has ended the log of a living process"
    Path(folder.url, "go on").touch()
    wait_for(lambda: Path(folder.url, "done").exists())
    process.send_signal(signal.SIGKILL)
    process.wait()
    finish_logs(folder)
    assert kept(folder).startswith(before)
    assert kept(folder).splitlines()[-1] == "last words, without an end of line"
    assert SECRET not in kept(folder)
    assert not node_files(tmp_path)


def test_a_process_that_prints_to_no_file_keeps_no_log(folder: RunFolder) -> None:
    reader, writer = os.pipe()
    saved = os.dup(1), os.dup(2)
    try:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        with copied_log(folder, 2, rank=1, group="abc"):
            pass
    finally:
        for descriptor, target in zip(saved, (1, 2), strict=True):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.close(reader)
        os.close(writer)
    assert not folder.storage.exists(KEY)


def test_a_log_is_bounded_and_says_so(
    folder: RunFolder,
    start: Callable[[str], subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_logs, "MAX_BYTES", 20_000)
    monkeypatch.setattr(worker_logs, "BLOCK_BYTES", 4_000)
    process = start("waits")
    wait_for(lambda: Path(folder.url, "ready").exists())
    with (tmp_path / "out").open("ab") as out:
        out.write(b"".join(b"line %d\n" % number for number in range(10_000)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    finish_logs(folder)
    content = folder.storage.read_bytes(KEY)
    assert 20_000 <= len(content) <= 24_000 + len(worker_logs.FULL)
    assert content.endswith(b"\n" + worker_logs.FULL)
    assert content.count(worker_logs.FULL) == 1


@pytest.mark.parametrize("seed", range(5))
def test_however_the_writes_fall_no_byte_is_lost_and_no_secret_shown(tmp_path: Path, seed: int) -> None:
    """The file grows in pieces that cut lines and secrets anywhere; some lines are longer than a line may be."""
    chance = random.Random(seed)
    secrets = [SECRET.encode(), b"zz"]
    words = [SECRET, "zz", "a", "\n", "bcd", "sesame", "z", "č", "\n\n", "x" * 3000]
    text = "".join(chance.choice(words) for _ in range(400)).encode() + b"\n"
    path = tmp_path / "out"
    path.touch()
    source, taken, written = TailedFile(str(path), 0), b"", 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_logs, "LONG_LINE_BYTES", 100)
        patch.setattr(worker_logs, "BLOCK_BYTES", 1000)
        while written < len(text):
            piece = text[written : written + chance.randrange(1, 700)]
            with path.open("ab") as file:
                file.write(piece)
            written += len(piece)
            taken += source.take(secrets, to_the_end=False)
        while part := source.take(secrets, to_the_end=True):
            taken += part
    for secret in secrets:
        assert secret not in taken
        text = text.replace(secret, MASK)
    assert taken == text


@pytest.mark.integration
def test_what_torch_says_of_our_own_choice_is_left_out(tmp_path: Path) -> None:
    script = (
        "import sys, torch; from torch.nn.parallel import DistributedDataParallel\n"
        "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)\n"
        "model = DistributedDataParallel(torch.nn.Linear(1, 1), find_unused_parameters=True)\n"
        "print('before', file=sys.stderr, flush=True)\n"
        "model(torch.ones(1, 1)).sum().backward()\n"
        "print('after', file=sys.stderr, flush=True)"
    )
    with (tmp_path / "err").open("wb") as err:
        subprocess.run([sys.executable, "-c", script], stderr=err, check=True, timeout=DEADLINE_S)
    assert "find_unused_parameters" in (tmp_path / "err").read_text()
    lines = TailedFile(str(tmp_path / "err"), 0).take([], to_the_end=True).splitlines()
    assert lines[-2:] == [b"before", b"after"]
