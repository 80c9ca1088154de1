"""Where the recordings of a manifest are, what marks their content, and where their copies lie."""

import hashlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainers.config.storage_location import StorageOptions, is_url, is_web_url, unreadable_url
from trainers.data.sources.located_files import describe, read_location
from trainers.data.sources.manifest_fields import DATA_ROOT, absolute, base_of
from trainers.data.sources.path_prefixes import prefix_of
from trainers.errors import StorageError
from trainers.storage import Entry, open_storage
from trainers.storage.base import clean_key
from trainers.storage.web_files import download_web_file

PARALLEL = 16
# Of more recordings of a bucket, a listing says what is there: a thousand a request.
MOST_ASKED_FOR = 1000
# A larger recording is copied to the disk in parts.
_LARGE_BYTES = 2**26


def location_of(path: str, manifest: str, prefixes: Mapping[str, str]) -> str:
    """The path or URL of a recording that a manifest at a URL names.

    Relative paths, and what is below SpeechBrain's `{data_root}`, count from the manifest's folder, unless a prefix is
    replaced; a prefix may be `{data_root}` itself.

    Raises:
        ValueError: a recording cannot be read from there; names the reason.
    """
    location = path
    if prefix_of(path, prefixes) is None:
        location = absolute(base_of(manifest.partition("?")[0]), DATA_ROOT.sub("", path))
    prefix = prefix_of(location, prefixes)
    if prefix is not None:
        location = prefixes[prefix] + location[len(prefix) :]
    if (reason := unreadable_url(location)) is not None:
        raise ValueError(reason)
    if is_url(location):
        try:
            clean_key(_split(location)[1])
        except StorageError as error:
            raise ValueError(str(error)) from None
    return location


def place_of(url: str) -> str:
    """A relative path of its own for a recording at a URL, with the same folders and name.

    Raises:
        ValueError: it has `..` in it.
    """
    path, _, query = url.replace("://", "/", 1).partition("?")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("its URL has '..' in it: write where it is")
    if query:
        parts.insert(-1, hashlib.sha256(query.encode(errors="surrogateescape")).hexdigest()[:8])
    return "/".join(parts)


def entries_of(urls: Collection[str], options: StorageOptions) -> dict[str, Entry]:
    """Size and mark of the content of each of the recordings that are there.

    Raises:
        StorageError: a bucket or a server cannot be asked.
    """
    of_buckets: dict[str, dict[str, str]] = {}
    found: dict[str, Entry] = {}
    asked = []
    for url in urls:
        if is_url(url):
            bucket, key = _split(url)
            of_buckets.setdefault(bucket, {})[key] = url
        else:
            asked.append(url)
    for bucket, keys in of_buckets.items():
        entries = open_storage(bucket, options).list_some(set(keys)) if len(keys) > MOST_ASKED_FOR else None
        if entries is None:
            asked += keys.values()
        else:
            found |= {keys[key]: entry for key, entry in entries.items()}

    def ask(url: str) -> Entry | None:
        try:
            return describe(url, options)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = zip(asked, pool.map(ask, asked), strict=True)
        return found | {url: entry for url, entry in answers if entry is not None}


def copy(url: str, entry: Entry, local: Path, options: StorageOptions) -> None:
    """Copies a file of a bucket or a server to `local`, whose folder is there.

    Raises:
        FileNotFoundError: there is none any more.
        StorageError: it cannot be read, or is another than the entry says.
    """
    if is_web_url(url):
        download_web_file(url, local)
        return
    if entry.size_bytes < _LARGE_BYTES or not is_url(url):
        local.write_bytes(read_location(url, options, one_of_many=True))
    else:
        folder, _, name = url.rpartition("/")
        open_storage(folder, options).download_file(name, local)
    if local.stat().st_size != entry.size_bytes:
        raise StorageError(f"{url}: it was changed while it was read: try again when it is complete")


def _split(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key
