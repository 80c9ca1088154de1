"""Identifies a model by its bytes, to compare the models of two starts. Loads no heavy library."""

from fnmatch import fnmatch

from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions, in_home, is_absolute, is_url
from trainers.errors import ConfigError
from trainers.models.sources.hub_models import version_of
from trainers.models.sources.model_files import (
    DESCRIPTION,
    PICKLED_WEIGHTS,
    file_at,
    hash_of_folder,
    hash_of_listing,
    names_in,
)
from trainers.storage import open_storage, sha256_of

# All files in a folder that may be opened, including an adapter's and the reference to its base weights.
_OPENED = (*DESCRIPTION, "*.safetensors", *PICKLED_WEIGHTS)


def contents_of(config: TrainConfig, model: str) -> dict[str, str]:
    """Returns the present content of the model and of the files for its decoding, by name; see `content_of`."""
    part, options = config.decode, config.run.storage_options
    named = {name: getattr(part, name) for name in (*part.files, *part.models)}
    of_decoding = {
        f"{name}_content": content_of(f"decode.{name}:", location, options)
        for name, location in named.items()
        if location is not None
    }
    revision = config.model.revision if model == config.model.name_or_path else None
    return {"model_content": content_of("MODEL", model, options, revision), **of_decoding}


def content_of(field: str, location: str, storage_options: StorageOptions, revision: str | None = None) -> str:
    """Returns an identifier of the content of a model, or a file, which differs if any byte that is opened differs.

    For local files, it is the SHA-256 of every byte. For files in a bucket, it is that of their names, sizes and ETags,
    since ETags change with the content, so that nothing is downloaded. For a Hub id, it is the commit.

    Raises:
        ConfigError: The location does not exist; the message begins with `field`.
        StorageError: The location cannot be read.
    """
    if is_url(location):
        file = file_at(location, storage_options)
        files = [file] if file is not None else open_storage(location, storage_options).list_files()
        return hash_of_listing(each for each in files if file is not None or _is_opened(each.key))
    path = in_home(location)
    if path.is_file():
        return sha256_of(path)
    if path.is_dir():
        return hash_of_folder(path, filter(_is_opened, names_in(path)))
    if is_absolute(location):
        raise ConfigError(f"{field} {location}: no such file or folder: name one that is there")
    return version_of(field, location, revision).commit


def _is_opened(name: str) -> bool:
    return "/" not in name and any(fnmatch(name, pattern) for pattern in _OPENED)
