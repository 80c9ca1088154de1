"""The page of a prepared set."""

from collections.abc import Iterator

from trainers.config.wording import format_bytes, format_duration
from trainers.data.prepared_set import PreparedSet
from trainers.run_folder.layout import now, version_of
from trainers.scoring.report.data_section import data_section
from trainers.scoring.report.prepared_clips import ClipSet
from trainers.scoring.report.rendering import rendered

# A set is a split of any number of runs.
NAME = "this set"


def prepared_html(prepared: PreparedSet) -> str:
    """The page of one prepared set.

    Raises:
        RayscribeError: a file of it is missing or damaged.
    """
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
    stored = format_bytes(clips.prepared.summary.stored_bytes)
    yield "Audio", format_duration(sum(clips.durations_s)), f"{stored} of 16-bit FLAC"
    yield "Clips", f"{len(clips.durations_s):,}", f"of {clips.rows:,} rows"
    yield "Quarantined", f"{clips.quarantined:,}", ""
    yield "Characters", f"{clips.characters.total():,}", f"{len(clips.characters):,} different"
