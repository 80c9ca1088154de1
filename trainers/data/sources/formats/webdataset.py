"""Reads WebDataset shards: tars in which the files of a sample have the same name and different extensions."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainers.config.strict_loading import load_json
from trainers.data.sources.archives.archive_index import ArchiveIndex
from trainers.data.sources.archives.archive_path import SUFFIX
from trainers.data.sources.archives.tar_members import Member
from trainers.data.sources.manifest_fields import (
    AUDIO_ENDINGS,
    UTF_8,
    in_utf_8,
    text_values,
    to_seconds,
)
from trainers.errors import DataError

TEXT, JSON = ("txt", "text"), "json"
_SUFFIX = re.compile(f"{SUFFIX}$", re.IGNORECASE)
# Keys of a sample's JSON, of which the first that exists is used.
KEYS = {
    "text": ("text", "sentence", "transcript", "transcription", "normalized_text"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk_id"),
    "language": ("language", "lang", "locale"),
    "duration": ("duration",),
}


def read_samples(
    indexes: Sequence[ArchiveIndex], *, audio: str | None, text: str | None, encoding: str = UTF_8
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns rows of the samples of shards, in the form that `table_of` takes, in order.

    Also returns, by id, why some have no recording or no text.

    Args:
        indexes: The shards.
        audio: Extension of the recordings, such as flac; None for any extension of recordings.
        text: Extension of the transcripts, such as txt, or json.KEY; None for txt, text, or a usual key of json.
        encoding: Encoding of the transcripts.
    """
    shards = [(index, dict(_grouped(index.members.values()))) for index in indexes]
    keys = [key for _, samples in shards for key in samples]
    # Shards often number their samples separately.
    are_unique = len(set(keys)) == len(keys)
    rows, problems, prefixes = list[dict[str, Any]](), dict[str, str](), shard_names(indexes)
    for index, samples in shards:
        for key, members in samples.items():
            name = key if are_unique else f"{prefixes[index.location]}/{key}"
            row: dict[str, Any] = {"id": name, "audio": f"{index.location}/{key}", "text": ""}
            try:
                row |= {"audio": f"{index.location}/{_recording(members, audio).name}"}
                row |= _described(members, text, encoding)
            except ValueError as error:
                problems[name] = str(error)
            rows.append(row)
    return rows, problems


def shard_names(indexes: Sequence[ArchiveIndex]) -> dict[str, str]:
    """Returns prefixes that distinguish shards in ids, by location: their names, or their paths if names repeat."""
    paths = {index.location: _SUFFIX.sub("", index.location) for index in indexes}
    names = {location: posixpath.basename(path) for location, path in paths.items()}
    return names if len(set(names.values())) == len(names) else paths


def _grouped(members: Iterable[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yields each sample, named by the file name up to its first dot, and its members by extension."""
    samples: dict[str, dict[str, Member]] = {}
    for member in members:
        folder, slash, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        sample = samples.setdefault(f"{folder}{slash}{stem}", {})
        problem = f"exists as .{ending.lower()} in several spellings" if ending.lower() in sample else member.problem
        sample[ending.lower()] = member._replace(problem=problem)
    yield from samples.items()


def _recording(members: Mapping[str, Member], audio: str | None) -> Member:
    """Returns the recording of a sample. Raises ValueError if there is none, or more than one."""
    found = [
        member
        for ending, member in members.items()
        if (ending == audio.lower().lstrip(".") if audio is not None else ending.rpartition(".")[2] in AUDIO_ENDINGS)
    ]
    if len(found) != 1:
        listed = ", ".join(sorted(members))
        raise ValueError(
            f"its sample has {'several recordings' if found else 'no recording'} ({listed}): set ?audio=EXTENSION"
        )
    if found[0].problem:
        raise ValueError(f"{found[0].name} {found[0].problem}")
    return found[0]


def _described(members: Mapping[str, Member], text: str | None, encoding: str) -> dict[str, Any]:
    """Returns text, speaker, language and duration of a sample. Raises ValueError if text is missing or wrong."""
    # Unused files of a sample are not read, so that errors in them do not matter.
    record = load_json(_text(members[JSON], UTF_8)) if JSON in members and _is_asked_of_json(members, text) else {}
    if not isinstance(record, dict):
        raise ValueError(f"{members[JSON].name} is not a JSON object")
    ending, _, key = (text or "").lstrip(".").partition(".")
    if text is None:
        plain, keys = [each for each in TEXT if each in members], KEYS
    elif ending.lower() == JSON:
        plain, keys = [], KEYS | ({"text": (key,)} if key else {})
    else:
        plain = [each for each in (text.lstrip(".").lower(),) if each in members]
        keys = KEYS | {"text": ()}
    given = {
        column: next((record[key] for key in names if record.get(key) is not None), None)
        for column, names in keys.items()
    }
    if plain:
        given["text"] = _text(members[plain[0]], encoding)
    if given["text"] is None:
        raise ValueError(f"its sample has no text ({', '.join(sorted(members))}): set ?text=EXTENSION")
    there = {name: value for name, value in given.items() if value is not None}
    values: dict[str, Any] = dict(zip(there, text_values(there, list(there), ("text",)), strict=True))
    seconds = values.pop("duration", None)
    return values | ({"duration_s": to_seconds(seconds)} if seconds is not None else {})


def _is_asked_of_json(members: Mapping[str, Member], text: str | None) -> bool:
    """Returns True if a sample's JSON has its text, or may have its metadata, since it is small."""
    has_text = not any(each in members for each in TEXT) if text is None else text.lstrip(".").lower().startswith(JSON)
    return has_text or members[JSON].text is not None


def _text(member: Member, encoding: str) -> str:
    if member.problem or member.text is None:
        raise ValueError(f"{member.name} {member.problem or f'has {member.size} bytes, more than a transcript'}")
    try:
        return in_utf_8(member.name, member.text, encoding).decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ValueError(f"{member.name} is not UTF-8") from None
    except DataError as error:
        raise ValueError(str(error)) from None
