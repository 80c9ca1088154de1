"""Tables of a data set that `datasets` passes over: it reads files of one kind, and leaves out those of others."""

import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainers.config.storage_location import is_hub_url
from trainers.config.wording import counted
from trainers.errors import DataError

# A .json may also hold settings.
_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson|parquet|arrow)(\.(gz|bz2|xz|zst|lz4))?$", re.IGNORECASE)
_JSON = ".json"
# Others of a split with hundreds are counted.
_SHOWN = 5


def refuse_passed_over(folder: str, read: Iterable[str], column: str) -> None:
    """Refuses a folder in which a split has tables of several kinds, of which those of one kind are read.

    Args:
        folder: The folder's absolute path.
        read: The files that are read.
        column: The column of recordings, by which a .json is known as a table.

    Raises:
        DataError: there are such tables; names one of each, and the fix.
    """
    taken = list(read)
    if left := _passed_over(folder, taken, column):
        raise DataError(
            f"data.dataset: {taken[0]} is read, and {left[0]} would be left out, as `datasets` reads files of one "
            "kind: save all of them in one, with endings in small letters, or take out those that are not meant"
        )


def warnings_of_passed_over(url: str, split: str, read: Iterable[str], column: str) -> list[str]:
    """What to warn of where a split of a data set on the Hub has such tables: many hold one table twice on purpose."""
    taken = list(read)
    if not (left := _passed_over(url, taken, column, split)):
        return []
    names = [posixpath.relpath(each, url) for each in (taken[0], *left[:_SHOWN])]
    more = ", …" if len(left) > _SHOWN else ""
    return [
        f"data.dataset: {url}: of {split}, `datasets` reads files of one kind, such as {names[0]}, and leaves out "
        f"{counted(len(left), 'table')} of other kinds: {', '.join(names[1:])}{more}; where these hold other rows, "
        "write a manifest of all of them"
    ]


def _passed_over(base: str, read: Sequence[str], column: str, split: str | None = None) -> list[str]:
    """The tables of a split, or of all, that are not among those read; none where a README says which files are."""
    from datasets.data_files import DataFilesDict, get_data_patterns  # noqa: PLC0415

    if _names_files(base):
        return []
    listed = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    found = {str(file) for name, files in listed.items() if split in (None, str(name)) for file in files}
    return [name for name in sorted(found.difference(read)) if _is_table(name, read, column)]


def _names_files(base: str) -> bool:
    """Whether the README of a data set, at a path or on the Hub, says by itself which files are the data set's."""
    import fsspec  # noqa: PLC0415
    from datasets import config  # noqa: PLC0415
    from datasets.utils.metadata import MetadataConfigs  # noqa: PLC0415
    from huggingface_hub import DatasetCard  # noqa: PLC0415

    files, root = fsspec.url_to_fs(base)
    if files.exists(f"{root}/{config.REPOYAML_FILENAME}"):
        return True
    readme = f"{root}/{config.REPOCARD_FILENAME}"
    if not files.exists(readme):
        return False
    return bool(MetadataConfigs.from_dataset_card_data(DatasetCard(files.cat_file(readme).decode()).data))


def _is_table(name: str, read: Sequence[str], column: str) -> bool:
    stem, ending = posixpath.splitext(name)
    if ending.lower() != _JSON:
        return _TABLE.search(posixpath.basename(name)) is not None
    if is_hub_url(name):
        # Each would be fetched, and there may be one next to each recording.
        return stem in {posixpath.splitext(each)[0] for each in read}
    return f'"{column}"'.encode() in Path(name).read_bytes()
