"""Recordings that are mixed into clips: noise and impulse responses, from a manifest."""

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.data.sources.archives.source_files import LocatedRows
from trainers.data.sources.manifest import segment
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.errors import AudioError, DataError

# Per pool and process: 70 minutes at 16 kHz. Recordings of a larger manifest are read again when drawn.
KEPT_BYTES = 256 * 2**20


def read_row(row: Row, reader: RecordingReader) -> npt.NDArray[np.float32]:
    """Reads the samples (T,) of a recording, or of a segment of it; mono, at the rate of prepared clips.

    Raises:
        AudioError: the recording does not exist, cannot be decoded, or ends before its segment.
        DataError: its archive is damaged.
        StorageError: the storage is not available.
    """
    (recording,) = reader.read([row])
    if isinstance(recording, AudioError):
        raise recording
    samples = decode(recording, name=str(row["audio"]))
    # A copy: a slice would keep the complete recording.
    return (
        samples
        if row["offset_s"] is None
        else segment(samples, SAMPLING_RATE_HZ, row["offset_s"], row["duration_s"]).copy()
    )


class RecordingPool:
    """The recordings of one manifest; each is read when first drawn, and cached up to a limit.

    Args:
        field: The config's field that names the manifest, for messages.
        rows: The manifest's rows, with their reader.
    """

    def __init__(self, field: str, rows: LocatedRows):
        self._field, self._table, self._reader = field, rows.table, rows.reader
        self._kept: OrderedDict[int, npt.NDArray[np.float32]] = OrderedDict()
        self._kept_bytes = 0

    def draw(self, generator: np.random.Generator) -> npt.NDArray[np.float32]:
        """Returns the samples (T,) of a recording, drawn uniformly; mono, at the rate of prepared clips.

        Raises:
            DataError: the recording cannot be read.
        """
        return self._read(int(generator.integers(len(self._table))))

    def _read(self, number: int) -> npt.NDArray[np.float32]:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        (row,) = self._table.slice(number, 1).to_pylist()
        try:
            samples = read_row(row, self._reader)
        except AudioError as error:
            raise DataError(
                f"{self._field}: {row['audio']}: {error}; fix it, or take it out of the manifest"
            ) from error
        self._kept[number] = samples
        self._kept_bytes += samples.nbytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return samples
