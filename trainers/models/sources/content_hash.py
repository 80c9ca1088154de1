"""What a model is, byte for byte, so that two starts know whether they have the same. Loads no heavy library."""

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

# All that may be opened of a folder; an adapter's files, and what names the weights that it goes with, among them.
_OPENED = (*DESCRIPTION, "*.safetensors", *PICKLED_WEIGHTS)


def contents_of(config: TrainConfig, model: str) -> dict[str, str]:
    """What the model and the files that it is decoded with are now, see `content_of`, by name.

    Raises:
        ConfigError: something is not there.
        StorageError: it cannot be read.
    """
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
    """Identifies the content of a model, or of one file: it is another wherever a byte that is opened is another.

    Of this machine's files it is the SHA-256 of every byte. Of a bucket's it is that of their names, sizes and ETags,
    which a bucket gives each content anew, so that nothing is downloaded. Of a Hub id it is the commit.

    Raises:
        ConfigError: there is no such thing; begins with `field`.
        StorageError: it cannot be read.
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
