"""Double buffering: the next batches are read, and copied to the device, while the present one computes."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch


class BatchesAhead(Iterator[dict[str, Any]]):
    """Batches of a loader, in its order, on the device.

    What is copied from pinned memory, on a stream of its own, is waited for by the device and not by this process.
    """

    def __init__(self, batches: Iterator[dict[str, Any]], device: torch.device):
        """Reads nothing yet.

        Args:
            batches: Batches in pinned memory; of their values, tensors are copied.
            device: Where to. On a CPU nothing is copied, and batches are only read ahead.
        """
        self.batches = batches
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waiting: deque[dict[str, Any]] = deque()

    def fetch(self) -> None:
        """Reads one more batch and begins to copy it. Called when the device has its work."""
        batch = next(self.batches, None)
        if batch is not None:
            with torch.cuda.stream(self._stream):
                self._waiting.append({name: self._copied(value) for name, value in batch.items()})

    def __next__(self) -> dict[str, Any]:
        if not self._waiting:
            self.fetch()
        if not self._waiting:
            raise StopIteration
        batch = self._waiting.popleft()
        if self._stream is not None:
            present = torch.cuda.current_stream(self._device)
            present.wait_stream(self._stream)
            for tensor in _tensors(batch):
                # Else its memory could be given to the next copy while the model still reads it.
                tensor.record_stream(present)
        return batch

    def _copied(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._copied(item) for name, item in value.items()}
        return value.to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value
