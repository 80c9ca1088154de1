"""open_storage: the storage that a text in a config names."""

import os
import re
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from trainers.config.storage_location import (
    DEFAULT_STORAGE_OPTIONS,
    ENDPOINT_VARIABLES,
    S3_SCHEME,
    StorageOptions,
    unsupported_url,
)
from trainers.errors import StorageError
from trainers.storage.base import Storage, clean_prefix
from trainers.storage.local_folder import LocalStorage
from trainers.storage.retry import RetryPolicy

# What botocore accepts; each service has narrower rules of its own and reports them itself.
_BUCKET = re.compile(r"[a-zA-Z0-9.\-_]{1,255}")
_WANTED = "give an absolute folder such as /mnt/runs, or s3://bucket/prefix"


def open_storage(
    root: str,
    storage_options: StorageOptions = DEFAULT_STORAGE_OPTIONS,
    *,
    retry: RetryPolicy | None = None,
    confined: bool = False,
) -> Storage:
    """Opens the absolute folder, `s3://bucket` or `s3://bucket/prefix` that `root` names, without accessing it.

    An S3 endpoint is resolved here, so that a storage sent to another process is the same there; credentials are each
    process's own. For `confined` see LocalStorage.

    Raises:
        StorageError: `root` or the endpoint is neither of these.
    """
    policy = retry or RetryPolicy()
    if root.startswith(S3_SCHEME):
        # Only here: boto3 takes half a second to load, and most commands of a client need none of it.
        from trainers.storage.s3 import S3Storage, connection_to  # noqa: PLC0415

        bucket, prefix = _split_s3_root(root)
        access = storage_options.s3_access(bucket)
        access = replace(access, endpoint_url=_endpoint(access.endpoint_url))
        return S3Storage(bucket, prefix, policy, connection_to(access))
    if unsupported_url(root) is not None or "://" in root:
        raise StorageError(f"storage root {root!r} is of no supported kind: {_WANTED}")
    folder = PurePosixPath(root)
    if not folder.is_absolute():
        # Workers run in folders of Ray's own, so a relative path would be another folder on each.
        raise StorageError(f"storage root {root!r} is not absolute: {_WANTED}")
    if ".." in folder.parts or "\0" in root:
        raise StorageError(f"storage root {root!r} has '..' or a NUL in it: {_WANTED}")
    return LocalStorage(str(folder), policy, confined)


def _split_s3_root(root: str) -> tuple[str, str]:
    bucket, _, prefix = root.removeprefix(S3_SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise StorageError(f"storage root {root!r} names no bucket that can exist ({bucket!r}): {_WANTED}")
    try:
        return bucket, clean_prefix(prefix)
    except StorageError as error:
        raise StorageError(f"storage root {root!r} cannot be used: {error}") from error


def _endpoint(given: str | None) -> str | None:
    url = given or next((value for name in ENDPOINT_VARIABLES if (value := os.environ.get(name))), None)
    if not url:
        return None
    parts = urlsplit(url)
    if "@" in parts.netloc:
        # Not echoed: it holds a password.
        raise StorageError("s3_endpoint_url holds a user name: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise StorageError(f"s3_endpoint_url {url!r} is not the URL of a service: give http(s)://host:port")
    return url.rstrip("/")
