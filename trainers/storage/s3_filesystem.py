"""pyarrow's filesystem of S3, for Ray Train and Ray Data, which send it to other processes."""

from collections.abc import Callable
from typing import Any

from pyarrow import fs


class S3Filesystem(fs.S3FileSystem):  # type: ignore[misc]
    """pyarrow's own, which forgets its number of tries when it is pickled; this one keeps it."""

    def __init__(self, attempts: int, **options: Any):
        """Connects to nothing yet.

        Args:
            attempts: Tries of each request in all.
            options: Of pyarrow's, but `retry_strategy`.
        """
        super().__init__(retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts), **options)
        self._made_with = (attempts, options)

    def __reduce__(self) -> tuple[Callable[..., "S3Filesystem"], tuple[int, dict[str, Any]]]:
        return _restore, self._made_with


def _restore(attempts: int, options: dict[str, Any]) -> S3Filesystem:
    return S3Filesystem(attempts, **options)
