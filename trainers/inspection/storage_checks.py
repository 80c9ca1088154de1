"""Whether the run's storage can be written, read and listed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainers.config.locations import cache_url_of, storage_path_of
from trainers.config.storage_location import is_url
from trainers.errors import StorageError
from trainers.findings import Check, Finding, ok
from trainers.inspection.subject import Subject
from trainers.storage import open_storage


def check_storage(subject: Subject) -> Iterator[Finding]:
    """Writes, reads, lists and deletes a small file under run.storage_path and, where it is another, data.cache_dir."""
    roots = {"run.storage_path": storage_path_of(subject.config)}
    if subject.config.data.cache_dir is not None:
        roots["data.cache_dir"] = cache_url_of(subject.config)
    for field, url in roots.items():
        is_folder = not is_url(url)
        if subject.elsewhere and is_folder and not Path(url).is_dir():
            yield subject.unreachable(f"{field}: {url} is a folder that this machine does not have")
            continue
        try:
            with _without_new_folders(Path(url) if is_folder else None):
                open_storage(url, subject.config.run.storage_options).check_writable()
        except StorageError as error:
            yield subject.unreachable(f"{field}: {error}")
        else:
            yield ok(f"{field}: {url} can be written, read and listed")


@contextmanager
def _without_new_folders(folder: Path | None) -> Iterator[None]:
    """Removes the empty folders that a check made."""
    made = [] if folder is None else [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        yield
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()


CHECKS = (Check("storage", "the run's storage can be written, read and listed", check_storage),)
