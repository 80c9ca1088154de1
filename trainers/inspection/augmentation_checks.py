"""Manifests of augmentation: what would otherwise stop training when it is first drawn."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainers.config.reading import AUGMENT_FIELDS
from trainers.config.storage_location import is_url
from trainers.data.augmentation.recording_pool import read_row, rows_of
from trainers.data.sources.manifest_source import open_manifest
from trainers.errors import AudioError, StorageError
from trainers.findings import Finding, named, ok, problem
from trainers.inspection.subject import Subject

# Recordings of a manifest that are read whole; spread over it.
MAX_DECODED = 32


def check_augmentation(subject: Subject) -> Iterator[Finding]:
    """Opens each manifest, and reads some of its recordings as training would."""
    fields = {f"{part}.{name}": getattr(subject.config.augment, name) for part, name in AUGMENT_FIELDS}
    locations = {field: location for field, location in fields.items() if location is not None}
    for field, location in locations.items():
        try:
            yield _recordings(subject, field, location)
        except StorageError as error:
            yield subject.unreachable(f"{field}: {error}")
    if not locations:
        yield ok("no recordings are mixed into clips")


def _recordings(subject: Subject, field: str, location: str) -> Finding:
    if not is_url(location) and not Path(location).is_file():
        return subject.unreachable(f"{field}: {location}: no such file; give a manifest (--set {field}=…)")
    config = subject.config
    columns = (config.data.audio_column_name, None)
    manifest = open_manifest(field, location, columns, config.run.storage_options)
    rows, options = rows_of(manifest.table), config.run.storage_options
    chosen = sorted(np.random.default_rng(0).permutation(len(rows))[:MAX_DECODED].tolist())
    bad: list[str] = []
    for row in chosen:
        try:
            read_row(rows[row], options)
        except FileNotFoundError:
            bad.append(f"{rows[row][0]}: no such file")
        except (AudioError, OSError) as error:
            bad.append(f"{rows[row][0]}: {error}")
    read = f"{len(rows)} recordings" if len(chosen) == len(rows) else f"{len(chosen)} of {len(rows)} recordings"
    if not bad:
        return ok(f"{field}: {read} in {location} can be read")
    text = f"{field}: {len(bad)} of {read} in {location} cannot be read ({named(bad)}); fix them, or take them out"
    # Where all are missing, the nodes may have them.
    return subject.unreachable(text) if len(bad) == len(chosen) else problem(text)
