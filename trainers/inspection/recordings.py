"""Reads durations of recordings from the manifest and, until a deadline, from headers; notes unreadable recordings."""

import io
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import soundfile

from trainers.config.storage_location import StorageOptions, unreadable_url
from trainers.data.audio import SAMPLING_RATE_HZ, decode, opens_with_av
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.located_files import read_location
from trainers.data.sources.recording_readers import without_location
from trainers.errors import AudioError, NoAccessError, StorageError

# Number of remote recordings to read; small, since each is downloaded completely.
MAX_FETCHED = 8
MAX_SAMPLED = 64
AT_A_TIME = 256
THREADS = 8
LENGTH_NOT_IN_HEADER = float("nan")
# libsndfile returns a number near 2**63 if the header has no length.
UNKNOWN_FRAMES = 2**62
NO_FILE = "no such file"


@dataclass
class Recordings:
    """Durations and errors of a split's recordings, of which `checked` were opened.

    `durations_s` has the duration of each row, shape (N,); NaN if neither manifest nor header has it. `unreadable` has
    the ids of unreadable recordings, with the reasons; `storage_error` is the error that stopped reading, if any.
    """

    durations_s: npt.NDArray[np.float64]
    checked: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    storage_error: str | None = None

    def note(self, row: Mapping[str, Any], at: int, found: float | str) -> None:
        """Notes what was found for row number `at`: its duration in seconds, or why it is unreadable."""
        self.checked += 1
        if isinstance(found, str):
            self.unreadable[row["id"]] = found
        elif np.isnan(self.durations_s[at]):
            self.durations_s[at] = found - (row["offset_s"] or 0.0)

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.durations_s)


def read_recordings(
    source: SourceSplit,
    storage_options: StorageOptions,
    *,
    deadline: float,
    progress: Callable[[int], None] = lambda checked: None,
) -> Recordings:
    """Reads headers of recordings in random order, until all are read or the monotonic clock reaches `deadline`.

    `progress` is called regularly with the number of recordings read.
    """
    declared_s = source.table["duration_s"].to_numpy(zero_copy_only=False).astype(np.float64)
    known = Recordings(declared_s)
    try:
        if source.has_file_per_recording:
            _read_headers(source, known, storage_options, deadline, progress)
        else:
            _read_sample(source, known, deadline)
    except StorageError as error:
        known.storage_error = str(error)
    return known


def _read_headers(
    source: SourceSplit,
    known: Recordings,
    storage_options: StorageOptions,
    deadline: float,
    progress: Callable[[int], None],
) -> None:
    table = source.table.select(["id", "audio", "offset_s"])
    paths = table["audio"]
    wanted = np.isnan(known.durations_s)

    def read(row: int) -> tuple[int, float | str]:
        return row, _read_header(paths[row].as_py(), storage_options, bool(wanted[row]))

    order: list[int] = np.random.default_rng(0).permutation(len(paths)).tolist()
    remote = [row for row in order if "://" in paths[row].as_py()]
    local = set(order) - set(remote)
    rows = [*remote[:MAX_FETCHED], *(row for row in order if row in local)]
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(rows), AT_A_TIME):
            for row, found in pool.map(read, rows[start : start + AT_A_TIME]):
                known.note(table.slice(row, 1).to_pylist()[0], row, found)
                progress(known.checked)
            if time.monotonic() > deadline:
                return


def _read_sample(source: SourceSplit, known: Recordings, deadline: float) -> None:
    """Reads some recordings completely; for sources from which headers alone cannot be read."""
    places = sorted(np.random.default_rng(0).permutation(len(source.table))[:MAX_SAMPLED].tolist())
    rows = source.table.take(places).to_pylist()
    for at, row, recording in zip(places, rows, source.reader.read(rows), strict=True):
        found: float | str = LENGTH_NOT_IN_HEADER
        if isinstance(recording, AudioError):
            found = str(recording)
        elif np.isnan(known.durations_s[at]):
            found = _length(io.BytesIO(recording), row["audio"])
        known.note(row, at, found)
        if time.monotonic() > deadline:
            return


def _read_header(location: str, storage_options: StorageOptions, header_wanted: bool) -> float | str:
    """Returns the duration from a recording's header in seconds, NaN if not found, or why it cannot be read."""
    if problem := unreadable_url(location):
        return problem
    try:
        if "://" in location:
            return _length(io.BytesIO(read_location(location, storage_options)), location)
        if not header_wanted:
            return LENGTH_NOT_IN_HEADER if Path(location).is_file() else NO_FILE
        with Path(location).open("rb") as file:
            return _length(file, location)
    except (FileNotFoundError, NoAccessError) as error:
        return NO_FILE if isinstance(error, FileNotFoundError) else without_location(error)
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _length(file: BinaryIO, name: str) -> float | str:
    """Returns a file's duration in seconds, NaN if its header has none, or why no decoder can read the file."""
    try:
        header = soundfile.info(file)
    except (soundfile.SoundFileError, ValueError):
        file.seek(0)
        if opens_with_av(file):
            return LENGTH_NOT_IN_HEADER
        return _decoded_length(file, name)
    if not header.frames:
        # A WAV file whose writer could not seek back to write the length into the header.
        return _decoded_length(file, name)
    return float(header.duration) if header.frames < UNKNOWN_FRAMES else LENGTH_NOT_IN_HEADER


def _decoded_length(file: BinaryIO, name: str) -> float | str:
    file.seek(0)
    try:
        return len(decode(file.read(), name=name)) / SAMPLING_RATE_HZ
    except AudioError as error:
        return str(error)
