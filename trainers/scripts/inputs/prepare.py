"""Runs `script.prepare`, a command that runs once per run, on the main process's node; all nodes get its output.

data/<key>/files-<id>/…      the files that it wrote
data/<key>/MANIFEST.json     sizes and SHA-256 of these files; created once, when all of them are stored
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from trainers.config.parts.script_part import ScriptPart
from trainers.errors import DamagedError, ProgramError, RayscribeError, StorageError
from trainers.run_folder.checkpoints import is_fetched
from trainers.run_folder.layout import RunFolder
from trainers.scripts.board import Board
from trainers.scripts.node_folder import replace_paths
from trainers.scripts.outputs.output_folder import output_folder_of
from trainers.storage import Storage, sha256_of
from trainers.storage.base import clean_key, in_parallel
from trainers.storage.own_folder import locked

DATA, MANIFEST = "data", "MANIFEST.json"
POLL_S = 0.5
# Number of polls of the board for each poll of the storage, in case the board has lost the result.
_POLLS_OF_BOARD = 20
_READY = "ready"
# Files outside of a package that are larger are compared by size and time instead of content.
_HASHED_BYTES = 16 << 20


def prepare_data(
    key: str,
    folder: RunFolder,
    into: Path,
    run: Callable[[Path], None],
    *,
    is_main: bool,
    board: Board,
    say: Callable[[str], None],
) -> None:
    """Fills the folder `into` of this node, by running a command here or from the run folder.

    The main process runs the command, unless an earlier attempt has; other processes wait. In text files, the main
    process's path of `into` is replaced by this node's path. For `key` see `key_of`; `run` runs the command, which
    writes into an empty folder.

    Raises:
        ScriptError: the command failed; also raised in processes that wait.
        DamagedError: the stored data is damaged.
        StorageError: the data cannot be stored or fetched.
    """
    topic = f"{DATA}/{key}"
    storage = folder.storage.sub(topic)
    if not is_main:
        _await_main(storage, board, topic)
        _fetch(storage, into, say)
        return
    try:
        if storage.exists(MANIFEST):
            _fetch(storage, into, say)
        else:
            shutil.rmtree(into, ignore_errors=True)
            into.mkdir(parents=True)
            run(into)
            if not _store(storage, into, say):
                shutil.rmtree(into)
                _fetch(storage, into, say)
    except Exception as error:
        own = error if isinstance(error, RayscribeError) else ProgramError(f"script.prepare: {error!r}")
        board.post(topic, own)
        raise
    board.post(topic, _READY)


def key_of(script: ScriptPart, package: str) -> str:
    """Returns a hash of the recipe's fields and the package on which the output of `script.prepare` depends."""
    fields = script.model_dump(mode="json", include={"prepare", "python", "working_dir", "env", "path_prefix"})
    return hashlib.sha256(json.dumps([package, fields], sort_keys=True).encode()).hexdigest()[:16]


def hash_of_files(script: ScriptPart, folder: Path) -> str:
    """Returns a hash of the files in a program's folder on which its preparation may depend.

    These are all files that `script.prepare` names, and all Python files below its working directory, except those in
    the program's output and installed packages. Of large files, only size and modification time are hashed.
    """
    work = folder / (script.working_dir or ".")
    output = work / script.sync_dir if script.sync_dir is not None else output_folder_of(script.command, work)
    named = (work / word.rpartition("=")[2] for word in script.prepare or ())
    found = hashlib.sha256()
    for path in sorted({*_python_files(work, output), *(path for path in named if _is_file(path))}):
        status = path.stat()
        is_large = status.st_size > _HASHED_BYTES
        content = f"{status.st_size} {status.st_mtime_ns}" if is_large else sha256_of(path)
        found.update(f"{os.path.relpath(path, work)}\0{content}\0".encode(errors="surrogateescape"))
    return found.hexdigest()


def _python_files(work: Path, output: Path | None) -> Iterator[Path]:
    for parent, folders, names in os.walk(work):
        here = Path(parent)
        folders[:] = [
            name for name in folders if not name.startswith(".") and name != "site-packages" and here / name != output
        ]
        yield from (here / name for name in names if name.endswith(".py") and _is_file(here / name))


def _is_file(path: Path) -> bool:
    # An argument may be too long for a path.
    try:
        return path.is_file()
    except OSError:
        return False


def _await_main(storage: Storage, board: Board, topic: str) -> None:
    polls = 0
    while True:
        answer = board.posted(topic)
        if isinstance(answer, RayscribeError):
            raise answer
        if answer is not None:
            return
        # The command may run for hours, during which the storage may be unavailable for a while.
        with contextlib.suppress(StorageError):
            if polls % _POLLS_OF_BOARD == 0 and storage.exists(MANIFEST):
                return
        polls += 1
        time.sleep(POLL_S)


def _store(storage: Storage, into: Path, say: Callable[[str], None]) -> bool:
    """Stores the prepared files; returns False if another attempt was first, whose data all nodes use then."""
    below = f"files-{uuid4().hex[:8]}"
    paths = sorted(into.rglob("*"))
    for path in paths:
        if path.is_symlink() and path.is_dir():
            say(f"script.prepare: {path} is a link to a folder, which other nodes do not get: copy the folder there")
    files: dict[str, dict[str, Any]] = {}

    def store(path: Path) -> None:
        name = path.relative_to(into).as_posix()
        storage.upload_file(path, f"{below}/{name}")
        files[name] = {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}

    in_parallel(store, (path for path in paths if path.is_file()))
    manifest = {"folder": str(into), "below": below, "files": dict(sorted(files.items()))}
    is_first = storage.create_exclusive(MANIFEST, json.dumps(manifest, indent=1).encode())
    # Deletes files of processes that were killed or too late.
    kept = below if is_first else _read_manifest(storage)["below"]
    for other in storage.list_folders():
        if other != kept:
            storage.delete_tree(other)
    size_mb = sum(each["size_bytes"] for each in files.values()) / 1e6
    say(f"prepared data: {len(files)} files, {size_mb:,.1f} MB, in {storage.url()}")
    return is_first


def _read_manifest(storage: Storage) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(storage.read_bytes(MANIFEST))
    except ValueError:
        raise DamagedError(f"{storage.url(MANIFEST)} is damaged: delete it, and the data is prepared again") from None
    return manifest


def _fetch(storage: Storage, into: Path, say: Callable[[str], None]) -> None:
    """Copies the stored files here and verifies each; keeps existing files that are equal."""
    manifest = _read_manifest(storage)
    source, files = storage.sub(manifest["below"]), manifest["files"]
    into.mkdir(parents=True, exist_ok=True)
    moved = re.compile(re.escape(manifest["folder"].encode()) + rb"(?![\w.-])")

    def fetch(name: str) -> None:
        local, sha256 = into / clean_key(name), files[name]["sha256"]
        if local.is_file() and sha256_of(local) == sha256:
            return
        part = local.with_name(f".{uuid4().hex}{local.suffix}")
        try:
            if not is_fetched(source, name, part, sha256):
                raise DamagedError(
                    f"{source.url(name)} differs from its SHA-256: delete {storage.url(MANIFEST)}, and the data is "
                    "prepared again"
                )
            if manifest["folder"] != str(into):
                replace_paths(part, moved, lambda _: str(into).encode())
            part.replace(local)
        finally:
            part.unlink(missing_ok=True)

    with locked(into):
        in_parallel(fetch, files)
    say(f"prepared data: {len(files)} files of {storage.url()} are in {into}")
