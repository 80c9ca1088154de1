"""Resolves revisions of models on the Hugging Face Hub to commits, and opens files in the node's shared cache."""

from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from trainers.models.pretrained import open_named
from trainers.models.sources.damaged_files import StoredTensor, tensors_of_remote
from trainers.models.sources.model_files import (
    DESCRIPTION,
    PICKLED_WEIGHTS,
    SAFE_INDEX,
    SAFE_WEIGHTS,
    SourcePin,
    names_in,
    refuse_unopened,
)
from trainers.storage.hub_errors import explain_hub_error, is_offline

# The model card is downloaded for its license.
CARD = "README.md"
_DESCRIPTION = (*DESCRIPTION, CARD)


class HubVersion(NamedTuple):
    """A commit, and the names of its top-level files."""

    commit: str
    names: tuple[str, ...]


def version_of(field: str, name: str, revision: str | None) -> HubVersion:
    """Returns the present commit of a revision, and downloads its description to the node; raises as `open_named`.

    If the Hub does not respond, returns the commit in the node's cache, with the files there.
    """
    # Imported here because it takes a fifth of a second, and most configs have no Hub id.
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415

    def ask() -> HubVersion:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(_DESCRIPTION)))
        try:
            siblings = HfApi().model_info(name, revision=folder.name).siblings or ()
        except Exception as error:
            if not is_offline(error) and explain_hub_error(error) is None:
                raise
            return HubVersion(folder.name, tuple(names_in(folder)))
        return HubVersion(folder.name, tuple(each.rfilename for each in siblings if "/" not in each.rfilename))

    return open_named(field, name, ask)


def folder_of(pin: SourcePin, *, weights: bool, allow_pickle: bool, cached: bool) -> Path:
    """Returns the folder of a commit's files in the node's cache, after downloading missing ones.

    huggingface_hub locks a file during its download, compares its size, and renames it when complete. If the files are
    `cached`, no request is sent. Raises ConfigError if the commit has no weights, or only pickled ones, which are not
    allowed, and StorageError if the commit is incomplete, or the Hub does not respond, and the commit is not in the
    cache.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    field, name, commit = f"model.{pin.field}", pin.address, pin.revision
    # A rank may have another cache than the first rank of its node.
    if cached and (folder := cached_folder(pin, weights=weights)) is not None:
        return folder

    def get(*patterns: str) -> Path:
        wanted = [*_DESCRIPTION, *patterns]
        return open_named(field, name, lambda: Path(snapshot_download(name, revision=commit, allow_patterns=wanted)))

    if not weights:
        return get()
    folder = get(*SAFE_WEIGHTS)
    if any((folder / each).exists() for each in (SAFE_WEIGHTS[0], SAFE_INDEX)):
        return folder
    refuse_unopened(version_of(field, name, commit).names, pin.name, allow_pickle=allow_pickle)
    return get(*PICKLED_WEIGHTS)


def tensors_on_hub(pin: SourcePin, file: str) -> dict[str, StoredTensor]:
    """Returns the tensors of a commit's file, by name, from its header; raises ConfigError if the file is damaged."""
    from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.utils._headers import build_hf_headers  # noqa: PLC0415
    from huggingface_hub.utils._http import hf_raise_for_status  # noqa: PLC0415

    url = hf_hub_url(pin.address, file, revision=pin.revision)

    def read(start: int, most: int) -> bytes:
        asked = {"Range": f"bytes={start}-{start + most - 1}", "Accept-Encoding": "identity"}
        timeout_s, content = constants.HF_HUB_DOWNLOAD_TIMEOUT, b""
        with get_session().stream("GET", url, headers=build_hf_headers() | asked, timeout=timeout_s) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            # A mirror may ignore ranges, and begin to send the complete file.
            skipped = 0 if response.status_code == HTTPStatus.PARTIAL_CONTENT else start
            for piece in response.iter_bytes():
                content += piece
                if len(content) >= skipped + most:
                    break
        return content[skipped : skipped + most]

    def ask() -> dict[str, StoredTensor]:
        return tensors_of_remote(file, get_hf_file_metadata(url).size or 0, read, pin.name)

    return open_named(f"model.{pin.field}", pin.address, ask)


def cached_folder(pin: SourcePin, *, weights: bool = False) -> Path | None:
    """Returns the folder of a commit in the node's cache; None if there is none."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    # Without patterns, huggingface_hub would request the list of files.
    wanted = [*DESCRIPTION, *(SAFE_WEIGHTS if weights else ())]
    try:
        return Path(snapshot_download(pin.address, revision=pin.revision, allow_patterns=wanted, local_files_only=True))
    except (OSError, ValueError):
        return None
