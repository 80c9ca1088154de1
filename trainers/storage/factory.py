"""open_storage opens the storage that a config names; try_out checks that it can be used from this machine."""

import os
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath

from trainers.config.storage_location import (
    DEFAULT_STORAGE_OPTIONS,
    GS_SCHEME,
    S3_SCHEME,
    URL_SCHEMES,
    StorageOptions,
    is_url,
    unsupported_url,
)
from trainers.errors import StorageError
from trainers.findings import Finding, ok, unread
from trainers.storage.base import Storage, clean_prefix
from trainers.storage.local_folder import LocalStorage
from trainers.storage.retry import RetryPolicy

# The names that any service allows; each has narrower rules and reports violations itself.
_BUCKET = re.compile(r"[a-zA-Z0-9.\-_$]{1,255}")
_WANTED = (
    "give an absolute folder such as /mnt/runs, or s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
)


def open_storage(
    root: str,
    storage_options: StorageOptions = DEFAULT_STORAGE_OPTIONS,
    *,
    retry: RetryPolicy | None = None,
    confined: bool = False,
) -> Storage:
    """Returns the storage at `root`, an absolute folder or the URL of a bucket or a prefix, without accessing it.

    A bucket's endpoint is resolved here, so that it stays the same when the storage is sent to another process; each
    process uses its own credentials. For `confined` see LocalStorage.

    Raises:
        StorageError: `root` or the endpoint is not valid.
    """
    policy = retry or RetryPolicy()
    if (scheme := next(filter(root.startswith, URL_SCHEMES), None)) is not None:
        return _open_bucket(scheme, root, policy, storage_options)
    if unsupported_url(root) is not None or "://" in root:
        raise StorageError(f"storage root {root!r} is not of a supported kind: {_WANTED}")
    folder = PurePosixPath(root)
    if not folder.is_absolute():
        # Workers run in Ray's own folders, so a relative path would be a different folder on each.
        raise StorageError(f"storage root {root!r} is not absolute: {_WANTED}")
    if ".." in folder.parts or "\0" in root:
        raise StorageError(f"storage root {root!r} has '..' or a NUL in it: {_WANTED}")
    return LocalStorage(str(folder), policy, confined)


def _open_bucket(scheme: str, root: str, policy: RetryPolicy, options: StorageOptions) -> Storage:
    # Imported here because obstore takes 40 ms to load, boto3 half a second, and most client commands need neither.
    from trainers.storage.bucket import BucketStorage  # noqa: PLC0415
    from trainers.storage.object_services import AzureBlobs, GoogleStorage, ObjectService  # noqa: PLC0415

    bucket, prefix = _split_root(root, scheme)
    service: ObjectService
    if scheme == S3_SCHEME:
        from trainers.storage.s3_service import S3  # noqa: PLC0415

        service = S3.of(options.s3_access(bucket))
    elif scheme == GS_SCHEME:
        service = GoogleStorage.of(options.gs_endpoint_url)
    else:
        service = AzureBlobs.of(options.az_account, options.az_endpoint_url)
    return BucketStorage(service, bucket, prefix, policy)


def try_out(root: str, storage_options: StorageOptions = DEFAULT_STORAGE_OPTIONS) -> None:
    """Raises StorageError within seconds if a storage cannot be written, read and listed; leaves nothing behind."""
    folders = [] if root.startswith(URL_SCHEMES) else [Path(root), *Path(root).parents]
    made = [path for path in folders if not os.path.lexists(path)]
    try:
        open_storage(root, storage_options).check_writable()
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def tried_out(field: str, root: str, storage_options: StorageOptions, *, elsewhere: bool) -> Finding:
    """Returns the result of `try_out` for a config's field; if the job runs `elsewhere`, creates no missing folder."""
    try:
        if elsewhere:
            refuse_other_machines(root)
        try_out(root, storage_options)
    except StorageError as error:
        return unread(f"{field}: {error}")
    return ok(f"{field}: {root} can be written, read and listed")


def refuse_other_machines(root: str) -> None:
    """Raises StorageError if `root` is a folder that this machine does not have."""
    if not is_url(root) and not Path(root).is_dir():
        raise StorageError(f"{root} is a folder that this machine does not have")


def _split_root(root: str, scheme: str) -> tuple[str, str]:
    bucket, _, prefix = root.removeprefix(scheme).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise StorageError(f"storage root {root!r} has an invalid bucket name ({bucket!r}): {_WANTED}")
    try:
        return bucket, clean_prefix(prefix)
    except StorageError as error:
        raise StorageError(f"storage root {root!r} cannot be used: {error}") from error
