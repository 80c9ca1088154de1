"""Starts a worker group from the run's newest undamaged checkpoint, uploaded or still staged on a node."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainers.config.storage_location import StorageOptions, is_absolute
from trainers.distributed.session import Session
from trainers.errors import DamagedError, ResumeError
from trainers.run_folder.attempt_status import restarts_of
from trainers.run_folder.checkpoints import (
    MANIFEST,
    RetentionPolicy,
    fetch,
    fetch_undamaged,
    for_ranks,
    model_of,
    newest,
    quarantine,
    read_manifest,
    sweep,
    upload_part,
    upload_staged,
)
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder
from trainers.run_folder.staging import StagedPart, Staging, list_staged, remove, staged_checkpoints_to_upload
from trainers.storage import Storage, open_storage

FROM = "from:"
FETCHING = "downloading a checkpoint"


def take_over(
    staging: Staging, writer: GroupWriter, retention: RetentionPolicy, session: Session, *, managed_by_service: bool
) -> dict[str, Any]:
    """Opens this worker group in the journal, and uploads the checkpoints that a killed group left staged.

    Every rank calls this; an error on one rank is raised on all. The steps are: the first rank of each node waits for
    the end of earlier groups there; the main process opens this group; completely staged checkpoints that are ahead of
    the run's, on one node or in parts on several, are uploaded, the oldest first; the earlier groups' staging folders
    are deleted; the main process deletes incomplete files in the run folder. After a kill in between, the next group
    uploads the rest.

    Returns the number of worker restarts in the attempt, see `restarts_of`.
    """
    others = (
        staging.wait_for_earlier_groups(managed_by_service=managed_by_service, log=session.show_from_main)
        if session.local_rank == 0
        else []
    )
    # Gathering also waits until earlier groups have ended on all nodes.
    parts = session.gather(list_staged(others), "waiting for the end of earlier worker groups")

    def opened() -> tuple[list[list[tuple[int, StagedPart]]], dict[str, Any]]:
        state = writer.open(session.world_size, session.restart_reason())
        return staged_checkpoints_to_upload(state.checkpoints, parts), restarts_of(state, state.attempt)

    left: list[list[tuple[int, StagedPart]]]
    restarts: dict[str, Any]
    left, restarts = session.broadcast(opened, "opening the worker group")
    for found in left:
        _upload_left(found, writer, retention, session)
    for folder in others:
        remove(folder)
    if session.is_main_process:
        sweep(writer)
    return restarts


def _upload_left(
    found: Sequence[tuple[int, StagedPart]], writer: GroupWriter, retention: RetentionPolicy, session: Session
) -> None:
    """Uploads one checkpoint, each part by the rank that has it. Every rank calls this."""
    session.show_from_main(f"uploading {found[0][1].name}, which a killed worker group has left complete")
    own = [part for rank, part in found if rank == session.rank]
    # The upload of the first part waits for the others and adds the checkpoint to the journal, so it comes last.
    with session.failing_together("uploading the parts that a killed worker group left"):
        for each in own:
            if each.part.number > 0:
                upload_part(each.folder, writer)
    with session.failing_together("uploading a checkpoint that a killed worker group left"):
        for each in own:
            if each.part.number == 0:
                upload_staged(each.folder, writer, retention)


def starting_point(staging: Staging, writer: GroupWriter, session: Session) -> tuple[Checkpoint, Path] | None:
    """Fetches the run's newest checkpoint into the staging folder of every node. Every rank calls this.

    Returns the checkpoint and its local folder; None if the run has none. Raises ResumeError if all are damaged.
    """
    local = staging.folder / "resume"
    return _on_every_node(lambda: _fetch_undamaged(writer, local, newest, session.show_from_main), local, session)


def fetch_best(
    staging: Staging, writer: GroupWriter, retention: RetentionPolicy, session: Session, *, or_newest: bool = False
) -> tuple[Checkpoint, Path] | None:
    """Fetches the model of the best checkpoint to every node; otherwise like `starting_point`.

    If no checkpoint may be the best, `or_newest` fetches that with the most steps.
    """
    local = staging.folder / "best"

    def best(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
        found = retention.best(checkpoints) or (newest(checkpoints) if or_newest else None)
        return model_of(found) if found is not None else None

    return _on_every_node(lambda: _fetch_undamaged(writer, local, best, session.show_from_main), local, session)


def fetch_ranked(
    staging: Staging, writer: GroupWriter, retention: RetentionPolicy, session: Session, count: int
) -> Iterator[tuple[Checkpoint, Path]]:
    """Fetches the models of the best checkpoints to every node, the best first; passes over damaged ones."""
    names = session.broadcast(
        lambda: [item.name for item in retention.ranked(writer.check().checkpoints)[:count]], FETCHING
    )
    for number, name in enumerate(names):
        local = staging.folder / f"ranked-{number}"
        fetched = _on_every_node(
            partial(_fetch_if_undamaged, writer, name, local, session.show_from_main), local, session
        )
        if fetched is not None:
            yield fetched


def _fetch_if_undamaged(
    writer: GroupWriter, name: str, local: Path, log: Callable[[str], None]
) -> tuple[Storage, Checkpoint] | None:
    """Fetches the model of a checkpoint; quarantines a damaged one, and returns None."""
    checkpoints = writer.folder.storage.sub(CHECKPOINTS)
    checkpoint = next((model_of(item) for item in writer.check().checkpoints if item.name == name), None)
    if checkpoint is None:
        return None
    try:
        fetch(checkpoints, checkpoint, local)
    except DamagedError as error:
        log(f"{error}; it is left out of the average")
        quarantine(writer, name)
        return None
    return checkpoints, checkpoint


def fetch_weights(
    address: str, storage_options: StorageOptions, staging: Staging, session: Session
) -> tuple[Checkpoint, Path]:
    """Fetches the model of a named checkpoint to every node. Every rank calls this."""
    local = staging.folder / "weights"

    def fetch_named() -> tuple[Storage, Checkpoint]:
        storage, checkpoint = named_checkpoint(address, storage_options)
        of_model = model_of(checkpoint)
        fetch(storage, of_model, local)
        return storage, of_model

    fetched = _on_every_node(fetch_named, local, session)
    assert fetched is not None
    return fetched


def _on_every_node(
    fetch_first: Callable[[], tuple[Storage, Checkpoint] | None], local: Path, session: Session
) -> tuple[Checkpoint, Path] | None:
    """Fetches and verifies a checkpoint on the main process, then on the other nodes with the shards of their ranks."""
    chosen: tuple[Storage, Checkpoint] | None = session.broadcast(fetch_first, FETCHING)
    if chosen is None:
        return None
    storage, checkpoint = chosen
    nodes = session.gather(session.node, FETCHING)
    if session.local_rank == 0 and not session.is_main_process:
        fetch(storage, for_ranks(checkpoint, [rank for rank, node in enumerate(nodes) if node == session.node]), local)
    session.barrier(FETCHING)
    return checkpoint, local


def _fetch_undamaged(
    writer: GroupWriter,
    local: Path,
    choose: Callable[[Sequence[Checkpoint]], Checkpoint | None],
    log: Callable[[str], None],
) -> tuple[Storage, Checkpoint] | None:
    """Fetches the chosen checkpoint; while it is damaged, quarantines it and chooses again."""
    checkpoints = writer.folder.storage.sub(CHECKPOINTS)

    def leave_out(checkpoint: Checkpoint, error: DamagedError) -> None:
        log(f"{error}; trying the next")
        shutil.rmtree(local, ignore_errors=True)
        quarantine(writer, checkpoint.name)

    fetch_one = partial(fetch, checkpoints, local=local)
    chosen = fetch_undamaged(checkpoints, writer.check().checkpoints, choose, fetch_one, leave_out)
    return (checkpoints, chosen) if chosen is not None else None


def named_checkpoint(text: str, storage_options: StorageOptions) -> tuple[Storage, Checkpoint]:
    """Returns the folder that contains the checkpoint of `run.resume: from:<text>`, and the checkpoint.

    Raises:
        ResumeError: not an absolute folder or URL, not a complete checkpoint, or not in its run's journal.
    """
    if not is_absolute(text):
        raise ResumeError(f"run.resume: from:{text}: give the absolute folder or URL of a checkpoint")
    parent, _, name = text.rstrip("/").rpartition("/")
    storage = open_storage(parent, storage_options)
    if not storage.exists(f"{name}/{MANIFEST}"):
        raise ResumeError(f"run.resume: from:{text}: has no {MANIFEST}, so it is not a complete checkpoint")
    run_url, _, last = parent.rpartition("/")
    if last == CHECKPOINTS:
        state = Journal(RunFolder(open_storage(run_url, storage_options))).read()
        if state.number > 0 and not state.has(name):
            raise ResumeError(
                f"run.resume: from:{text}: the run's journal does not name it: a stale attempt left it, or it was "
                "found damaged; use another checkpoint"
            )
    return storage, read_manifest(storage, name)
