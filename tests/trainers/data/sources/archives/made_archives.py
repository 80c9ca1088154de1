"""Archives of spoken clips, as tests read them."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import soundfile

from tests.trainers.synthetic import RATE_HZ, speechlike

# Words that no encoding but UTF-8 has right.
WORDS = ("čaj", "kafa", "dobar dan", "šećer", "mleko", "")


def wave(number: int) -> np.ndarray:
    """Samples of a clip, each number of another length."""
    return speechlike(0.3 + 0.05 * (number % 7), seed=number)


def recording(number: int, kind: str = "flac") -> bytes:
    sink = io.BytesIO()
    soundfile.write(sink, wave(number), RATE_HZ, format=kind)
    return sink.getvalue()


def text(number: int) -> str:
    return WORDS[number % len(WORDS)]


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def manifest_members(count: int, folder: str = "") -> list[tuple[str, bytes]]:
    """A manifest and its recordings, in folders of their own."""
    rows = "".join(f"clips/{number}.flac\t{text(number)}\n" for number in range(count))
    clips = [(f"{folder}clips/{number}.flac", recording(number)) for number in range(count)]
    return [(f"{folder}train.tsv", f"path\ttext\n{rows}".encode()), *clips]
