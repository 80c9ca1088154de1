"""Recordings that are mixed into clips: noise and impulse responses, from a manifest."""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainers.config.storage_location import StorageOptions
from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.data.sources.located_files import read_location
from trainers.data.sources.manifest import segment
from trainers.errors import AudioError, DataError

# Of one pool in one process: 70 minutes at 16 kHz. A manifest of more is read again as it is drawn from.
KEPT_BYTES = 256 * 2**20


# Path or URL of a recording, and of a segment of it offset and duration in seconds.
Row = tuple[str, float | None, float | None]


def rows_of(manifest: pa.Table) -> list[Row]:
    """Rows of `manifest.read_manifest`."""
    return list(zip(*(manifest[name].to_pylist() for name in ("audio", "offset_s", "duration_s")), strict=True))


def read_row(row: Row, storage_options: StorageOptions) -> npt.NDArray[np.float32]:
    """Samples (T,) of a recording, or of a segment of it; mono, at the rate of prepared clips.

    Raises:
        AudioError: it cannot be decoded, or ends before its segment.
        OSError: it cannot be read.
    """
    path, offset_s, duration_s = row
    samples = decode(read_location(path, storage_options, one_of_many=True), name=path)
    # A copy: a slice would keep the complete recording.
    return samples if offset_s is None else segment(samples, SAMPLING_RATE_HZ, offset_s, duration_s).copy()


class RecordingPool:
    """The recordings of one manifest; each is read when it is first drawn, and kept within a bound.

    Args:
        field: The config's field that names the manifest, for messages.
        manifest: Its rows, see `manifest.read_manifest`.
        storage_options: How buckets are reached.
    """

    def __init__(self, field: str, manifest: pa.Table, storage_options: StorageOptions):
        self._field, self._storage_options = field, storage_options
        self._rows = rows_of(manifest)
        self._kept: OrderedDict[int, npt.NDArray[np.float32]] = OrderedDict()
        self._kept_bytes = 0

    def draw(self, generator: np.random.Generator) -> npt.NDArray[np.float32]:
        """Samples (T,) of one of the recordings, each as likely; mono, at the rate of prepared clips.

        Raises:
            DataError: it cannot be read.
        """
        return self._read(int(generator.integers(len(self._rows))))

    def _read(self, number: int) -> npt.NDArray[np.float32]:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        try:
            samples = read_row(self._rows[number], self._storage_options)
        except (AudioError, OSError) as error:
            path = self._rows[number][0]
            raise DataError(f"{self._field}: {path}: {error}; fix it, or take it out of the manifest") from error
        self._kept[number] = samples
        self._kept_bytes += samples.nbytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return samples
