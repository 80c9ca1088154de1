"""Copies new files of the main node's output folder to all nodes before its program leaves a barrier.

So all ranks find, as on a shared disk, the files that `run_on_main` prepares, or that a library saves on the main
process and loads on all ranks, such as a tokenizer. A file is shared once, when it is new; of checkpoints, only those
that every rank reads are shared. The program requests this by files, see `in_program/sitecustomize.py`; then the nodes
use the board of the group, for the n-th request:

    shared/offer/<n>          main node: name and size of each new file, and names of shared files that are deleted
    shared/lack/<n>/<node>    another node: which of the new files it does not have
    shared/stored/<n>         main node: the folder, in the run folder, of files that some node lacks, and their names
    shared/have/<n>/<node>    another node: it has them now
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainers.errors import StorageError
from trainers.scripts.outputs.in_program import sitecustomize
from trainers.scripts.outputs.output_files import OutputFiles
from trainers.scripts.outputs.parts import NodeOutput

SHARED = "shared"
# Variable to set to 0 in script.env to leave the program's barriers unchanged, and share no files.
SHARE_FILES = "RAYSCRIBE_SHARE_FILES"
POLL_S = 0.05
# Timeout of the main node for another node, which may fetch large files.
TIMEOUT_S = 900.0


def program_variables(output: Path, requests: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Creates the folder of requests; returns the variables with which the main process's program makes requests.

    Returns none and creates nothing if the program's environment turns this off.
    """
    if environment.get(SHARE_FILES) == "0":
        return {}
    code = requests / "code"
    code.mkdir(parents=True, exist_ok=True)
    shutil.copy2(sitecustomize.__file__, code)
    return {
        sitecustomize.OUTPUT: str(output),
        sitecustomize.REQUESTS: str(requests),
        # First in the path, since this module itself runs the next module with its name.
        "PYTHONPATH": os.pathsep.join([str(code), environment["PYTHONPATH"]]),
    }


class FileSharer:
    """Shares files of the main node; `key` is the folder of shared files in the run folder.

    Must be created before the program starts; other nodes have earlier files from the package or the run folder.
    """

    def __init__(self, output: NodeOutput, key: str, requests: Path, stopping: threading.Event):
        self._board, self._others, self._requests, self._stopping = output.board, output.others, requests, stopping
        self._files = OutputFiles(output.folder, [each for each in output.layouts if not each.is_read_by_all])
        self._storage, self._key = output.run_folder.storage, key
        self._known = set(self._files.sizes())
        self._asked = self._offered = 0

    @property
    def is_awaited(self) -> bool:
        """True if the program is waiting for files to be shared."""
        is_asked = (self._requests / f"asked-{self._asked + 1}").exists()
        return is_asked or (self._asked > 0 and not (self._requests / f"shared-{self._asked}").exists())

    def serve(self) -> None:
        """Shares new files if the program waits for it; the program continues even if this fails.

        Raises:
            StorageError: a node does not have all files.
        """
        if not (self._requests / f"asked-{self._asked + 1}").exists():
            return
        self._asked += 1
        try:
            there = self._files.sizes()
            new = {name: size_bytes for name, size_bytes in there.items() if name not in self._known}
            gone = self._known - there.keys()
            if new or gone:
                self._share(new, gone)
                self._known = set(there)
        finally:
            (self._requests / f"shared-{self._asked}").touch()

    def _share(self, new: dict[str, int], gone: set[str]) -> None:
        self._offered += 1
        self._board.post(f"{SHARED}/offer/{self._offered}", (new, gone))
        stored: list[str] = []
        try:
            lacking = {name for names in self._answers("lack") for name in names}
            stored = self._files.send(lacking, self._storage.sub(self._key))
        finally:
            self._board.post(f"{SHARED}/stored/{self._offered}", (self._key, stored))
        self._answers("have")
        self._storage.delete_tree(self._key)

    def _answers(self, topic: str) -> list[Any]:
        """Returns the values that all other nodes have posted."""
        end_s, answers = time.monotonic() + TIMEOUT_S, []
        for node in self._others:
            while (answer := self._board.posted(f"{SHARED}/{topic}/{self._offered}/{node}")) is None:
                if time.monotonic() > end_s or self._stopping.wait(POLL_S):
                    raise StorageError(f"node {node} may lack files that the main process has written")
            answers.append(answer)
        return answers


class FileReceiver:
    """Receives files on the other nodes; `localize` replaces paths in a file by this node's folders."""

    def __init__(self, output: NodeOutput, files: OutputFiles, localize: Callable[[Path], None]):
        self._board, self._node, self._storage = output.board, output.node, output.run_folder.storage
        self._files, self._localize = files, localize
        self._answered = 0
        self._lacking: list[str] | None = None

    def serve(self) -> None:
        """Answers an offer, and fetches the missing files once they are stored.

        Raises:
            StorageError: a file could not be fetched; the next call retries it.
        """
        number = self._answered + 1
        if self._lacking is None:
            offer = self._board.posted(f"{SHARED}/offer/{number}")
            if offer is None:
                return
            new, gone = offer
            self._files.remove(gone)
            # A file may exist because nodes share a disk, or because every rank has written it.
            self._lacking = self._files.lacking(new)
            self._board.post(f"{SHARED}/lack/{number}/{self._node}", self._lacking)
        stored = self._board.posted(f"{SHARED}/stored/{number}")
        if stored is not None:
            key, names = stored
            self._files.fetch(set(names) & set(self._lacking), self._storage.sub(key), self._localize)
            self._board.post(f"{SHARED}/have/{number}/{self._node}", True)
            self._answered, self._lacking = number, None
