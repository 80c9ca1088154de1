import json
from typing import Any

from trainers.run_folder.journal import Journal, State, accepted_metrics
from trainers.run_folder.layout import RunFolder


def metrics_of(folder: RunFolder, state: State | None = None) -> list[dict[str, Any]]:
    """All lines of metrics that count, of all worker groups in their order.

    Args:
        folder: The run folder.
        state: The state of its journal, where the caller has read it.
    """
    content = accepted_metrics(folder, Journal(folder).read() if state is None else state)
    # A full disk may have cut a line short before the next one was written.
    return [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]
