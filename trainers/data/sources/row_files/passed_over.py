"""Tables of a folder that `datasets` passes over: it reads files of one kind, and leaves out those of others."""

import re
from collections.abc import Iterable
from pathlib import Path

from trainers.errors import DataError

# A .json may also hold settings.
_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson|parquet|arrow)(\.(gz|bz2|xz|zst|lz4))?", re.IGNORECASE)
_JSON = ".json"


def refuse_passed_over(folder: Path, read: Iterable[str], column: str) -> None:
    """Refuses a folder in which a split has tables of several kinds, of which those of one kind are read.

    Args:
        folder: The folder, whose README names no files.
        read: The files that are read.
        column: The column of recordings, by which a .json is known as a table.

    Raises:
        DataError: there are such tables; names one of each, and the fix.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns  # noqa: PLC0415

    base, taken = folder.expanduser().resolve().as_posix(), list(read)
    listed = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    left = sorted({str(file) for files in listed.values() for file in files}.difference(taken))
    if (other := next((name for name in left if _is_table(Path(name), column)), None)) is not None:
        raise DataError(
            f"data.dataset: {taken[0]} is read, and {other} would be left out, as `datasets` reads files of one kind: "
            "save all of them in one, with endings in small letters, or take out those that are not meant"
        )


def names_files(folder: Path) -> bool:
    """Whether a folder's README says by itself which files are the data set's."""
    from datasets import config  # noqa: PLC0415
    from datasets.utils.metadata import MetadataConfigs  # noqa: PLC0415
    from huggingface_hub import DatasetCard  # noqa: PLC0415

    if (folder / config.REPOYAML_FILENAME).is_file():
        return True
    readme = folder / config.REPOCARD_FILENAME
    return readme.is_file() and bool(MetadataConfigs.from_dataset_card_data(DatasetCard.load(readme).data))


def _is_table(path: Path, column: str) -> bool:
    if path.suffix.lower() == _JSON:
        return f'"{column}"'.encode() in path.read_bytes()
    return _TABLE.fullmatch("".join(path.suffixes[-2:])) is not None or _TABLE.fullmatch(path.suffix) is not None
