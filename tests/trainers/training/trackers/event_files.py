"""What TensorBoard's event files hold."""

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray


def points_of(folder: Path, name: str) -> list[tuple[int, float]]:
    """All points of a curve in all event files of a folder, in their order."""
    events = [event for path in sorted(folder.glob("events*")) for event in EventFileLoader(str(path)).Load()]
    return [
        (event.step, float(make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
        if value.tag == name
    ]
