"""Reads LibriSpeech and corpora of its layout: chapters, each with `SPEAKER-CHAPTER.trans.txt` next to its clips."""

from collections.abc import Iterator
from typing import Any

from trainers.data.sources.manifest_fields import decode
from trainers.errors import DataError

TRANSCRIPTS, EXTENSION = ".trans.txt", ".flac"


def read_chapter(location: str, content: bytes) -> Iterator[dict[str, Any]]:
    """Yields rows, in the form that `table_of` takes, of a file of transcripts: an id and a text in each line.

    Raises DataError for a line without a text, or with an id that does not belong to the chapter.
    """
    folder, _, name = location.rpartition("/")
    chapter = name.removesuffix(TRANSCRIPTS)
    for number, line in enumerate(decode(location, content).splitlines(), start=1):
        clip, _, text = line.strip().partition(" ")
        if not clip:
            continue
        if not clip.startswith(f"{chapter}-") or "/" in clip or not text.strip():
            raise DataError(f"{location}: line {number} is {line!r}: write {chapter}-NUMBER and its text")
        row = {"id": clip, "audio": f"{folder}/{clip}{EXTENSION}", "text": text.strip()}
        yield {**row, "speaker": chapter.partition("-")[0]}
