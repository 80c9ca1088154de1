"""Whether the run's storage can be written, read and listed, and the model be pushed."""

from collections.abc import Iterator
from pathlib import Path

from trainers.config.locations import cache_url_of, storage_path_of
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError, StorageError
from trainers.findings import Check, Finding, ok, skipped
from trainers.inspection.subject import Subject
from trainers.run_folder.hub.repository import repository_of
from trainers.storage import try_out


def check_storage(subject: Subject) -> Iterator[Finding]:
    """Writes, reads, lists and deletes a small file under run.storage_path and, where it is another, data.cache_dir."""
    roots = {"run.storage_path": storage_path_of(subject.config)}
    if subject.config.data.cache_dir is not None:
        roots["data.cache_dir"] = cache_url_of(subject.config)
    for field, url in roots.items():
        if subject.elsewhere and not is_url(url) and not Path(url).is_dir():
            yield subject.unreachable(f"{field}: {url} is a folder that this machine does not have")
            continue
        try:
            try_out(url, subject.config.run.storage_options)
        except StorageError as error:
            yield subject.unreachable(f"{field}: {error}")
        else:
            yield ok(f"{field}: {url} can be written, read and listed")


def check_hub(subject: Subject) -> Iterator[Finding]:
    """Asks the Hub whose the token is, and whether it may write where the model is pushed; makes nothing."""
    part, name = subject.config.hub, subject.config.run.name
    if not part.push:
        yield ok("hub.push is false: nothing is pushed to the Hub")
        return
    if part.model_id is None and name is None:
        yield skipped("hub.model_id and run.name are null: the name is made when the run begins")
        return
    try:
        repository = repository_of(part, str(name), make=False)
    except (ConfigError, StorageError) as error:
        # The token of the nodes may be another.
        yield subject.unreachable(str(error))
    else:
        yield ok(f"the best model can be pushed to {repository.url}")


CHECKS = (
    Check("storage", "the run's storage can be written, read and listed", check_storage),
    Check("hub", "the best model can be pushed to the Hub", check_hub),
)
