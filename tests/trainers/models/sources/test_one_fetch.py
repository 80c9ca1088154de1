"""Of many processes of a node one fetches, and the others wait for it; what a killed one left is not used."""

import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.models.sources import fetching_process
from tests.trainers.models.sources.conftest import HUB_ID
from tests.trainers.models.sources.test_sources import wanted, zipped
from tests.web import WebServer
from trainers.distributed.session import LocalSession
from trainers.models.sources.opened_model import open_once_a_node, open_sources, pin_sources
from trainers.models.sources.source_reader import made_once
from trainers.storage import sha256_of

TIMEOUT_S = 120.0


def fetching(url: str, node: Path) -> "subprocess.Popen[str]":
    """A process of a node, that has begun to open the source."""
    process = subprocess.Popen(
        [sys.executable, fetching_process.__file__, url],
        env={**os.environ, "TMPDIR": str(node)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    return process


@pytest.mark.integration
@pytest.mark.parametrize("hashed", [True, False], ids=["with a hash", "without a hash"])
def test_two_processes_that_race_for_a_source_fetch_it_once(
    ctc_folder: Path, tmp_path: Path, web: WebServer, *, hashed: bool
) -> None:
    file, node, released = zipped(ctc_folder, tmp_path / "a.zip"), tmp_path / "shared", threading.Event()
    node.mkdir()
    # Who reads a second response finds it cut, again and again.
    url = web.publish("/a.zip", file.read_bytes(), released=released, cuts=[2**30, *[10] * 9])
    if hashed:
        url += f"#sha256={sha256_of(file)}"
    first = fetching(url, node)
    while not web.gets("/a.zip"):
        assert first.poll() is None
    second = fetching(url, node)
    released.set()
    found = [process.communicate(timeout=TIMEOUT_S)[0].strip() for process in (first, second)]
    assert found == [sha256_of(ctc_folder / "model.safetensors")] * 2
    # Without a hash the second asks whether it is still the same, and reads no more of it.
    assert len(web.gets("/a.zip")) == (1 if hashed else 2)


@pytest.mark.integration
def test_what_a_killed_process_left_is_fetched_anew(ctc_folder: Path, tmp_path: Path, web: WebServer) -> None:
    file, node, released = zipped(ctc_folder, tmp_path / "a.zip"), tmp_path / "shared", threading.Event()
    node.mkdir()
    url = f"{web.publish('/a.zip', file.read_bytes(), released=released)}#sha256={sha256_of(file)}"
    killed = fetching(url, node)
    while not web.gets("/a.zip"):
        assert killed.poll() is None
    killed.kill()
    killed.communicate()
    released.set()
    assert fetching(url, node).communicate(timeout=TIMEOUT_S)[0].strip() == sha256_of(ctc_folder / "model.safetensors")
    assert [path.name for path in node.rglob(".*") if path.suffix == ".part" or path.name == ".download"] == []


@dataclass(frozen=True)
class OfNode(LocalSession):
    """A rank of a node of two; they meet here."""

    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def gather(self, item: Any, what: str) -> list[Any]:
        """Waits for the other."""
        self.meeting.wait(TIMEOUT_S)
        return [item]


def test_of_the_ranks_of_a_node_only_the_first_asks_the_hub(
    hub: WebServer, on_hub: str, ctc_folder: Path, tmp_path: Path
) -> None:
    recipe = wanted(HUB_ID)
    pins, meeting, opened = pin_sources(recipe), threading.Barrier(2), dict[int, Path | None]()

    def run(rank: int) -> None:
        opened[rank] = open_once_a_node(recipe, pins, OfNode(rank, 2, rank, meeting)).folder

    ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(TIMEOUT_S)
    assert opened[0] == opened[1]
    assert len(hub.gets(f"/{HUB_ID}/resolve/{on_hub}/model.safetensors")) == 1
    hub.requests.clear()
    open_sources(recipe, pins, weights=True, cached=True)
    assert hub.requests == []


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"half")
        raise zipfile.BadZipFile

    with pytest.raises(zipfile.BadZipFile):
        made_once("url", "key", "model", fail)
    made = made_once("url", "key", "model", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]
