"""Describes prepared sets for a page: durations, characters, and rows that were left out, by reason."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainers.config.storage_location import StorageOptions, is_url
from trainers.config.wording import format_bytes, format_duration
from trainers.data.prepared_set import SUMMARY, PreparedSet, find, shard_name
from trainers.errors import RayscribeError
from trainers.run_folder.layout import RunFolder, now, version_of
from trainers.scoring.report.charts import durations
from trainers.scoring.report.rendering import rendered
from trainers.storage import Storage, open_storage

PREPARED = "prepared"


@dataclass(frozen=True)
class ClipSet:
    """A prepared split, with the duration of each clip, and the counts of characters in the texts."""

    split: str
    durations_s: Sequence[float]
    characters: Counter[str]
    prepared: PreparedSet

    @classmethod
    def of(cls, split: str, prepared: PreparedSet) -> "ClipSet":
        """Reads index and counts of a set; raises the errors of reading them."""
        index = prepared.index
        characters: Counter[str] = Counter()
        # In chunks, so that the texts of a large set are not in memory together.
        for texts in index["text"].chunks:
            for text in texts.to_pylist():
                characters.update(text)
        return cls(split, index["duration_s"].to_pylist(), characters, prepared)

    def speakers(self) -> dict[str, str]:
        """Returns the known speakers by clip id; empty if the set is not on a disk of this machine."""
        found: dict[str, str] = {}
        for shard in sorted({*self.prepared.index["shard"].to_pylist()}):
            for table in self._shard(shard):
                rows = zip(table["id"].to_pylist(), table["speaker"].to_pylist(), strict=True)
                found |= {id: speaker for id, speaker in rows if speaker}
        return found

    def recordings(self, ids: Collection[str]) -> dict[str, bytes]:
        """Returns FLAC files by id; empty if the set is not on a disk of this machine."""
        index = self.prepared.index
        places = zip(index["id"].to_pylist(), index["shard"].to_pylist(), index["row"].to_pylist(), strict=True)
        return {
            id: table["audio"][row].as_py()["bytes"]
            for id, shard, row in places
            if id in ids
            for table in self._shard(shard)
        }

    def _shard(self, shard: int) -> Iterator[pa.Table]:
        if is_url(self.prepared.url):
            return
        # Memory-mapped, so that only columns that are used are read.
        with pa.memory_map(str(Path(self.prepared.url) / shard_name(shard))) as source:
            yield pa.ipc.open_stream(source).read_all()


def prepared_at(storage: Storage) -> PreparedSet | None:
    """Returns the prepared set in this folder; None if the folder is not one."""
    if not storage.exists(SUMMARY):
        return None
    url = storage.url()
    return PreparedSet(url, url.rpartition("/")[2].partition("-")[0])


def clip_sets(folder: RunFolder, config: Mapping[str, Any], keys: Mapping[str, str]) -> list[ClipSet]:
    """Returns the prepared sets of a run that can be read from here; `keys` are their hashes by split."""
    return [found for split, key in keys.items() if (found := _clip_set(folder, config, split, key)) is not None]


def _clip_set(folder: RunFolder, config: Mapping[str, Any], split: str, key: str) -> ClipSet | None:
    beside = f"{folder.url.rpartition('/')[0]}/{PREPARED}"
    # A copied run folder may have its prepared sets next to it.
    for url in dict.fromkeys(((config.get("data") or {}).get("cache_dir") or beside, beside)):
        try:
            options = StorageOptions.of(config["run"])
            if (prepared := find(open_storage(url, options), key, options)) is not None:
                return ClipSet.of(split, prepared)
        # The set may be on another machine, or deleted; the report then does without it.
        except (RayscribeError, OSError, pa.ArrowException, LookupError, ValueError):
            continue
    return None


MOST_CHARACTERS = 200
REASONS = 50
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# Name of a set on its own page, since it may be a split of several runs.
NAME = "this set"


def data_section(sets: Sequence[ClipSet], quarantine: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values of the template data_section.html.j2; rows of `quarantine` have split, id and reason."""
    return {
        "clip_sets": [_described(found) for found in sets],
        "data_charts": [durations(found.split, found.durations_s) for found in sets if found.durations_s],
        "most_characters": MOST_CHARACTERS,
        "quarantine": _reasons(quarantine),
    }


def _described(found: ClipSet) -> dict[str, Any]:
    quantiles_s = np.percentile(found.durations_s, [0, 50, 100]).tolist() if found.durations_s else []
    return {
        "split": found.split,
        "rows": found.prepared.summary.rows,
        "clips": len(found.durations_s),
        "quarantined": found.prepared.summary.quarantined,
        "total_s": sum(found.durations_s),
        "quantiles_s": quantiles_s,
        "characters": found.characters.most_common(),
        "key": found.prepared.key,
    }


def _reasons(quarantine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts quarantined rows by split and reason, ignoring numbers in the reason; the most frequent first."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in quarantine:
        reason = str(row.get("reason", "")).replace(str(row.get("id", "")) or "\0", "…")
        found.setdefault((str(row.get("split", "")), _NUMBER.sub("…", reason)), []).append(row)
    counts: list[dict[str, Any]] = []
    for (split, reason), rows in found.items():
        shown = reason if len(rows) > 1 else str(rows[0].get("reason", ""))
        counts.append({"split": split, "reason": shown, "rows": len(rows), "first": str(rows[0]["id"])})
    return sorted(counts, key=lambda item: -item["rows"])[:REASONS]


def prepared_html(prepared: PreparedSet) -> str:
    """Returns the page of one prepared set; raises RayscribeError if a file of the set is missing or damaged."""
    clips = ClipSet.of(NAME, prepared)
    return rendered(
        "prepared.html.j2",
        title=prepared.url.rpartition("/")[2],
        url=prepared.url,
        read=now(),
        version=version_of("rayscribe") or "",
        sections=[("data", "Data")],
        numbers=[*_numbers(clips)],
        duration=format_duration,
        **data_section([clips], [{"split": NAME, **row} for row in prepared.quarantine]),
    )


def _numbers(clips: ClipSet) -> Iterator[tuple[str, str, str]]:
    summary = clips.prepared.summary
    yield "Audio", format_duration(sum(clips.durations_s)), f"{format_bytes(summary.stored_bytes)} of 16-bit FLAC"
    yield "Clips", f"{len(clips.durations_s):,}", f"of {summary.rows:,} rows"
    yield "Quarantined", f"{summary.quarantined:,}", ""
    yield "Characters", f"{clips.characters.total():,}", f"{len(clips.characters):,} different"
