"""Where runs and data are stored: a folder or an S3 bucket behind one interface.

This package is the only user of boto3 and of pyarrow's filesystems; it needs no torch.

    factory.py        open_storage: the storage that a text in a config names
    base.py           Storage, Entry and what a key may be
    local_folder.py   a folder
    s3.py             a bucket of S3, or of a service with its protocol
    s3_errors.py      what boto3's errors mean and how to fix them
    hub_errors.py     which errors of the Hugging Face Hub may pass
    own_folder.py     folders of temporary files that are closed to other users
    json_files.py     JSON without numbers that JSON does not know
    retry.py          retry what may pass, fail at once on what will not
"""

from trainers.storage.base import Entry, Storage, sha256_of
from trainers.storage.factory import open_storage
from trainers.storage.retry import RetryPolicy

__all__ = ["Entry", "RetryPolicy", "Storage", "open_storage", "sha256_of"]
