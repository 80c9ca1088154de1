"""Storage in a bucket of S3, or of a service with the same protocol."""

import os
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import botocore
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from trainers.config.storage_location import S3_SCHEME, S3Access
from trainers.errors import StorageError
from trainers.storage.base import PART_SUFFIX, Entry, Storage, clean_prefix
from trainers.storage.bucket import CREATOR, BucketStorage
from trainers.storage.retry import PROBE_RETRY, Explanation
from trainers.storage.s3_errors import error_code, explain_s3_error

_BEYOND_THE_END = ("InvalidRange", "416")
_NOT_ALLOWED = ("AccessDenied", "AllAccessDisabled", "403")
_MIB = 1024 * 1024
_TRANSFER = TransferConfig(
    multipart_threshold=32 * _MIB,
    multipart_chunksize=16 * _MIB,
    max_concurrency=4,
    preferred_transfer_client="classic",
)
# S3 copies at most 5 GiB in one request; below that, one request is a complete copy or none.
_COPY = TransferConfig(multipart_threshold=1024 * _MIB, multipart_chunksize=512 * _MIB)
_CONNECTIONS: "dict[tuple[Any, ...], S3Connection]" = {}


class S3Connection:
    """Clients for one endpoint, made on first use in every process; made by `connection_to`.

    Pickled as the options of access and two timeouts: sockets cannot be pickled, and credentials must not be.
    """

    def __init__(self, access: S3Access, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.access = access
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._locks: dict[int, threading.Lock] = {}
        # By process, and number of attempts or bucket.
        self._made: dict[tuple[int, int | str], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return connection_to, (self.access, *self._timeouts_s)

    def client(self, attempts: int = 1) -> Any:
        """Returns a boto3 client for S3 with `attempts` attempts of each request; threads may share it."""
        return self._own(attempts, lambda: self._new_client(attempts))

    def reader(self, bucket: str, make: Callable[[], Callable[[str], bytes] | None]) -> Callable[[str], bytes] | None:
        """Returns the reader of a bucket's objects in this process, made by `make` on first use; None: use boto3."""
        read: Callable[[str], bytes] | None = self._own(bucket, make)
        return read

    def give_up_reader(self, bucket: str) -> None:
        self._made[os.getpid(), bucket] = None

    def _own(self, key: int | str, make: Callable[[], Any]) -> Any:
        # The process is in the key because a forked process must not use its parent's sockets.
        process = os.getpid()
        # Nor may it wait for a lock held by a thread of its parent.
        with self._locks.setdefault(process, threading.Lock()):
            if (process, key) not in self._made:
                self._made[process, key] = make()
            return self._made[process, key]

    def _new_client(self, attempts: int) -> Any:
        connect_timeout_s, read_timeout_s = self._timeouts_s
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            max_pool_connections=32,
            retries={"mode": "standard", "total_max_attempts": attempts},
            signature_version=botocore.UNSIGNED if self.access.anonymous else None,
        )
        if self.access.endpoint_url:
            # Not every service has a host name for each bucket, or accepts the checksums that AWS requires.
            other = Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            config = config.merge(other)
        endpoint_url, region = self.access.endpoint_url, self.region()
        return self._session().client("s3", endpoint_url=endpoint_url, region_name=region, config=config)

    def _session(self) -> boto3.session.Session:
        # A new session, since two threads must not use boto3's default session at once.
        return boto3.session.Session(profile_name=self.access.profile)

    def region(self) -> str | None:
        """Returns the region; never None with an endpoint, since other services ignore it."""
        found = self.access.region or os.environ.get("AWS_REGION") or self._session().region_name
        return found or ("us-east-1" if self.access.endpoint_url else None)


def connection_to(access: S3Access, connect_timeout_s: float = 10.0, read_timeout_s: float = 60.0) -> S3Connection:
    """Returns this process's connection to an endpoint with the present credentials; connects on first use.

    A new client takes 130 ms of computation, and may request credentials from the cloud's metadata service; an existing
    one takes neither. Without an endpoint it is AWS's, or that in AWS's config file.
    """
    # Secrets may be resolved after the first storage is opened.
    credentials = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    key = (access, connect_timeout_s, read_timeout_s, credentials)
    return _CONNECTIONS.setdefault(key, S3Connection(access, connect_timeout_s, read_timeout_s))


@dataclass(frozen=True)
class S3Storage(BucketStorage):
    """Objects of an S3 bucket. Storages made by `sub` share the connection."""

    scheme = S3_SCHEME

    connection: S3Connection

    def read_bytes(self, key: str) -> bytes:
        return self._read(key)

    def read_one_of_many(self, key: str) -> bytes:
        """See Storage. obstore computes a fifth of what boto3 does; boto3 reads what only it can read."""
        name = self._object(key)
        failed = False
        try:
            read = self.connection.reader(self.bucket, self._new_reader)
            if read is not None:
                return read(name)
        except Exception as error:
            # For any error, boto3 tries again, since users know its errors.
            failed = not isinstance(error, FileNotFoundError)
        data = self.read_bytes(key)
        if failed:
            self.connection.give_up_reader(self.bucket)
        return data

    def _new_reader(self) -> Callable[[str], bytes] | None:
        # Imported lazily: most processes read no recordings.
        from trainers.storage.s3_reader import reader_of  # noqa: PLC0415

        region = self.connection.region() or self._region_of_bucket()
        return reader_of(self.bucket, replace(self.connection.access, region=region), self.retry)

    def read_part(self, key: str, start: int, most: int) -> bytes:
        return self._read(key, most, start, Range=f"bytes={start}-{start + most - 1}")

    def _read(self, key: str, most: int | None = None, start: int = 0, **options: str) -> bytes:
        def read(name: str) -> bytes:
            try:
                response = self._client.get_object(Bucket=self.bucket, Key=name, **options)
            except ClientError as error:
                if error_code(error) in _BEYOND_THE_END:
                    return b""
                raise
            if start and "ContentRange" not in response:
                raise StorageError(f"cannot read a part of {self.url(key)}: the service sends no ranges of objects")
            with closing(response["Body"]) as body:
                # A service without ranges sends everything, which is not read. Only a complete read checks the length.
                complete = most is None or response.get("ContentLength", most + 1) <= most
                data: bytes = body.read() if complete else body.read(most)
            return data

        return self._run("read", key, read)

    def write_bytes(self, key: str, data: bytes) -> None:
        self._run("write", key, lambda name: self._client.put_object(Bucket=self.bucket, Key=name, Body=data))

    def entry(self, key: str) -> Entry | None:
        head = self._run("look for", key, self._head)
        if head is None:
            return None
        return Entry(key, head["ContentLength"], head["LastModified"].timestamp(), head.get("ETag", ""))

    def list_files(self, prefix: str = "") -> list[Entry]:
        def entries() -> list[Entry]:
            items = (item for page in self._pages(Prefix=self._below(prefix)) for item in page.get("Contents", []))
            # Consoles mark an empty folder by an object whose key ends with a slash.
            found = [self._entry(item) for item in items if not item["Key"].endswith(("/", PART_SUFFIX))]
            return sorted(found, key=lambda entry: entry.key)

        return self._retry("list", self.url(clean_prefix(prefix)), entries)

    def list_some(self, keys: Collection[str]) -> dict[str, Entry] | None:
        """See Storage. Lists a bucket from the first of the keys to the last: a thousand objects per request."""
        names = {self._object(key) for key in keys}
        if not names:
            return {}
        # Strings are ordered like a bucket's listing, by UTF-8.
        first, last = min(names), max(names)
        # A prefix in S3 is made of characters. A listing starts after a name: `first` less one character precedes it.
        prefix = os.path.commonprefix([first, last])  # noqa: RUF071

        def entries() -> dict[str, Entry] | None:
            found: dict[str, Entry] = {}
            try:
                for page in self._pages(Prefix=prefix, StartAfter=first[:-1]):
                    contents = page.get("Contents", [])
                    found |= {self._key(item["Key"]): self._entry(item) for item in contents if item["Key"] in names}
                    if contents and contents[-1]["Key"] >= last:
                        break
            except ClientError as error:
                if error_code(error) in _NOT_ALLOWED:
                    return None
                raise
            return found

        return self._retry("list", self.url(), entries)

    def list_folders(self, prefix: str = "", *, start: str = "") -> list[str]:
        def folders() -> list[str]:
            pages = self._pages(Prefix=f"{self._below(prefix)}{start}", Delimiter="/")
            return sorted(
                self._key(item["Prefix"]).rstrip("/") for page in pages for item in page.get("CommonPrefixes", [])
            )

        return self._retry("list", self.url(clean_prefix(prefix)), folders)

    def delete(self, key: str) -> None:
        self._run("delete", key, lambda name: self._client.delete_object(Bucket=self.bucket, Key=name))

    def create_exclusive(self, key: str, data: bytes) -> bool:
        creator = uuid4().hex

        def create(name: str) -> bool:
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=name, Body=data, IfNoneMatch="*", Metadata={CREATOR: creator}
                )
            except ClientError as error:
                if error_code(error) not in ("PreconditionFailed", "412"):
                    raise
                # The object may exist because an earlier attempt succeeded and only its response was lost.
                head = self._head(name)
                return head is not None and head["Metadata"].get(CREATOR) == creator
            return True

        return self._run("create", key, create)

    def copy_file(self, source: str, target: str) -> None:
        original = {"Bucket": self.bucket, "Key": self._object(source)}

        def copy(name: str) -> None:
            self._client_of_parts.copy(original, self.bucket, name, Config=_COPY)

        self._run(f"copy {self.url(source)} to", target, copy)

    def upload_file(self, local: Path, key: str) -> None:
        def upload(name: str) -> None:
            self._client_of_parts.upload_file(str(local), self.bucket, name, Config=_TRANSFER)

        self._run(f"upload {local} to", key, upload)

    def _download(self, name: str, part: Path) -> None:
        self._client_of_parts.download_file(self.bucket, name, str(part), Config=_TRANSFER)

    def _for_probe(self) -> Storage:
        connection = connection_to(self.connection.access, connect_timeout_s=3.0, read_timeout_s=10.0)
        return replace(self, connection=connection, retry=PROBE_RETRY)

    def _region_of_bucket(self) -> str:
        # Imported lazily: for most buckets the region is known.
        from pyarrow import fs  # noqa: PLC0415

        try:
            region: str = fs.resolve_s3_region(self.bucket)
        except OSError as error:
            raise StorageError(
                f"cannot open {self.url()}: AWS does not report the region of the bucket {self.bucket!r}; "
                "check its name and the network, or set run.s3_region or AWS_REGION"
            ) from error
        return region

    @property
    def _client(self) -> Any:
        return self.connection.client()

    @property
    def _client_of_parts(self) -> Any:
        """The client for files that may be sent in parts, each of which is retried."""
        return self.connection.client(self.retry.part_attempts)

    def _pages(self, **options: str) -> Iterable[dict[str, Any]]:
        pages: Iterable[dict[str, Any]] = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, **options
        )
        return pages

    def _entry(self, item: dict[str, Any]) -> Entry:
        return Entry(self._key(item["Key"]), item["Size"], item["LastModified"].timestamp(), item["ETag"])

    def _head(self, name: str) -> dict[str, Any] | None:
        """Returns an object's metadata; None if there is no such object."""
        try:
            head: dict[str, Any] = self._client.head_object(Bucket=self.bucket, Key=name)
        except ClientError as error:
            if error_code(error) in ("404", "NoSuchKey", "NotFound"):
                return None
            raise
        if "LastModified" not in head:
            raise StorageError(
                f"cannot look for s3://{self.bucket}/{name}: what responds is no S3 service, such as a "
                "proxy or a login page; check s3_endpoint_url and AWS_ENDPOINT_URL"
            )
        return head

    def _explain(self, error: BaseException) -> Explanation | None:
        return explain_s3_error(error, bucket=self.bucket, endpoint=self.connection.access.endpoint_url or "AWS")
