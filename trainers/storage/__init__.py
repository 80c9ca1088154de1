"""Where runs and data lie: a folder or an S3 bucket behind one interface.

This package is the only user of boto3 and of pyarrow's filesystems; it needs no torch.

    open.py        from the words in a config to a storage
    base.py        Storage, Entry and what a key may be
    local.py       a folder
    s3.py          a bucket, or any service that speaks S3
    s3_faults.py   what S3's errors mean and how to mend them
    retry.py       try again what may pass, fail at once on what will not
"""

from trainers.storage.base import Entry, Storage, sha256_of
from trainers.storage.opening import open_storage
from trainers.storage.retry import RetryPolicy

__all__ = ["Entry", "RetryPolicy", "Storage", "open_storage", "sha256_of"]
