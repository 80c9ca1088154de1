"""Storage of runs and data: a folder or a bucket behind one interface (`base.Storage`).

This package is the only user of boto3, obstore and pyarrow's filesystems; it needs no torch.
"""

from trainers.storage.base import Entry, Storage, sha256_of
from trainers.storage.factory import open_storage, try_out
from trainers.storage.retry import RetryPolicy

__all__ = ["Entry", "RetryPolicy", "Storage", "open_storage", "sha256_of", "try_out"]
