"""Which nodes share the main node's output folder, which alone puts back and keeps what is there.

What two nodes did there would be in each other's way, and everything would be stored once for each of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainers.scripts.board import Board
from trainers.scripts.outputs.snapshot import snapshots_of

MARKED, SEEN, SHARING = "outputs/marked", "outputs/seen/{}", "outputs/sharing"


def sharing_nodes(
    output: Path | None, group: str, number: int, count: int, board: Board, wait_for: Callable[[str], Any]
) -> frozenset[int]:
    """The nodes that share the main node's output folder; the first process of each node calls it.

    Args:
        output: The folder on this node. None: it is not known.
        group: Id of the worker group.
        number: Of this node; 0 is the main node.
        count: Nodes of the group.
        board: Of the group.
        wait_for: Gives what is posted about a topic, once it is.
    """
    if count == 1:
        return frozenset()
    mark = None if output is None else Path(f"{snapshots_of(output)}-{group}")
    if number:
        wait_for(MARKED)
        board.post(SEEN.format(number), mark is not None and mark.exists())
        sharing: frozenset[int] = wait_for(SHARING)
        return sharing
    if mark is not None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    board.post(MARKED, True)
    found = frozenset(node for node in range(1, count) if wait_for(SEEN.format(node)))
    if mark is not None:
        mark.unlink(missing_ok=True)
    board.post(SHARING, found)
    return found
