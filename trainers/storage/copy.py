"""Copies a file within one storage: a second name for it on a disk, a copy by the service itself in a bucket."""

import os
from pathlib import Path
from uuid import uuid4

from boto3.s3.transfer import TransferConfig

from trainers.storage.base import PART_SUFFIX, Storage
from trainers.storage.local_folder import LocalStorage
from trainers.storage.retry import Fault
from trainers.storage.s3 import S3Storage
from trainers.storage.s3_errors import S3Faults

_MIB = 1024 * 1024
# S3 copies at most 5 GiB in one request; below that, one request is a whole copy or none.
_TRANSFER = TransferConfig(multipart_threshold=1024 * _MIB, multipart_chunksize=512 * _MIB)


def copy_file(storage: Storage, source: str, target: str) -> None:
    """Makes the file under the key `source` be seen under `target` too, whole at any time; no byte comes here.

    On a disk it is a hard link, which takes no room: neither may be written in place from then on.

    Raises:
        StorageError: `source` is not there, or the storage cannot do it.
    """
    if isinstance(storage, S3Storage):
        _copy_object(storage, source, target)
    else:
        assert isinstance(storage, LocalStorage)
        _link(storage, source, target)


def _copy_object(storage: S3Storage, source: str, target: str) -> None:
    names = [storage.url(key).removeprefix(f"s3://{storage.bucket}/") for key in (source, target)]
    faults = S3Faults(storage.bucket, storage.connection.endpoint_url or "AWS")

    def copy() -> None:
        client = storage.connection.client(storage.retry.part_attempts)
        client.copy({"Bucket": storage.bucket, "Key": names[0]}, storage.bucket, names[1], Config=_TRANSFER)

    storage.retry.run(copy, action=f"copy {storage.url(source)} to", url=storage.url(target), fault_of=faults.fault_of)


def _link(storage: LocalStorage, source: str, target: str) -> None:
    old, new = Path(storage.url(source)), Path(storage.url(target))

    def link() -> None:
        new.parent.mkdir(parents=True, exist_ok=True)
        part = new.parent / f".{uuid4().hex}{PART_SUFFIX}"
        try:
            os.link(old, part)
            part.replace(new)
        finally:
            # Where both are names of one file already, replacing one by the other does nothing.
            part.unlink(missing_ok=True)

    storage.retry.run(link, action=f"link {old} to", url=str(new), fault_of=_fault_of)


def _fault_of(error: BaseException) -> Fault | None:
    if not isinstance(error, OSError):
        return None
    return Fault(error.strerror or str(error), "check the folder, and that its file system knows hard links")
