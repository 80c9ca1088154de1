"""Storage in a bucket of S3, or of a service with the same protocol."""

import os
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from pyarrow import fs

from trainers.errors import StorageError
from trainers.storage.base import PART_SUFFIX, Entry, Storage, clean_key, clean_prefix, in_parallel, with_line
from trainers.storage.retry import RetryPolicy
from trainers.storage.s3_errors import error_code, explain_s3_error

T = TypeVar("T")

_CREATOR = "rayscribe-creator"
_BEYOND_THE_END = "InvalidRange"
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
_PROBE_RETRY = RetryPolicy(attempts=2, part_attempts=1, first_delay_s=0.2)
_CONNECTIONS: "dict[tuple[Any, ...], S3Connection]" = {}


class S3Connection:
    """Clients for one endpoint, made when first used and anew in every process; made by `connection_to`.

    Pickled, it is an endpoint and two timeouts: sockets do not travel, and credentials must not.
    """

    def __init__(self, endpoint_url: str | None, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.endpoint_url = endpoint_url
        self._timeouts_s = (connect_timeout_s, read_timeout_s)
        self._locks: dict[int, threading.Lock] = {}
        # By process, and number of attempts or bucket.
        self._made: dict[tuple[int, int | str], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return connection_to, (self.endpoint_url, *self._timeouts_s)

    def client(self, attempts: int = 1) -> Any:
        """A boto3 client for S3 that tries each request `attempts` times; threads may share it."""
        return self._own(attempts, lambda: self._new_client(attempts))

    def reader(self, bucket: str, make: Callable[[], Callable[[str], bytes] | None]) -> Callable[[str], bytes] | None:
        """What reads objects of a bucket in this process, by `make` where there is nothing yet; None: boto3 does."""
        read: Callable[[str], bytes] | None = self._own(bucket, make)
        return read

    def give_up_reader(self, bucket: str) -> None:
        self._made[os.getpid(), bucket] = None

    def _own(self, key: int | str, make: Callable[[], Any]) -> Any:
        # The process is in the key because a forked one must not use its parent's sockets.
        process = os.getpid()
        # Nor may it wait for a lock that a thread of its parent holds.
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
        )
        if self.endpoint_url:
            # Not every service has a host name for each bucket, nor accepts the checksums that AWS requires.
            other = Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            config = config.merge(other)
        # A session of its own: boto3's default one may not be used by two threads at once.
        session = boto3.session.Session()
        return session.client("s3", endpoint_url=self.endpoint_url, region_name=self.region(), config=config)

    def region(self) -> str | None:
        """AWS_REGION, else what boto3 itself finds; with an endpoint never None, since services ignore it."""
        found = os.environ.get("AWS_REGION") or boto3.session.Session().region_name
        return found or ("us-east-1" if self.endpoint_url else None)


def connection_to(
    endpoint_url: str | None, connect_timeout_s: float = 10.0, read_timeout_s: float = 60.0
) -> S3Connection:
    """This process's connection to an endpoint with the credentials of now; connects to nothing yet.

    A new client costs 130 ms of computing, and may ask the cloud's metadata service for credentials; one that is
    there costs neither. Without an endpoint it is AWS, or what AWS's config file says.
    """
    # Secrets may be resolved later than the first storage is opened.
    credentials = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
    key = (endpoint_url, connect_timeout_s, read_timeout_s, credentials)
    return _CONNECTIONS.setdefault(key, S3Connection(endpoint_url, connect_timeout_s, read_timeout_s))


@dataclass(frozen=True)
class S3Storage(Storage):
    """Objects of a bucket below a clean key, the prefix; "" is all of the bucket.

    What `sub` makes shares the connection.
    """

    connection: S3Connection
    bucket: str
    prefix: str
    retry: RetryPolicy

    def url(self, key: str = "") -> str:
        path = self._object(key) if key else self.prefix
        return f"s3://{self.bucket}/{path}" if path else f"s3://{self.bucket}"

    def sub(self, prefix: str) -> "S3Storage":
        return replace(self, prefix=self._object(prefix) if prefix else self.prefix)

    def read_bytes(self, key: str) -> bytes:
        return self._read(key)

    def read_one_of_many(self, key: str) -> bytes:
        """See Storage. obstore computes a fifth of what boto3 does; what only boto3 can read, boto3 reads."""
        name = self._object(key)
        failed = False
        try:
            read = self.connection.reader(self.bucket, self._new_reader)
            if read is not None:
                return read(name)
        except Exception as error:
            # Whatever it was, boto3 decides, and its errors are the ones that users know.
            failed = not isinstance(error, FileNotFoundError)
        data = self.read_bytes(key)
        if failed:
            self.connection.give_up_reader(self.bucket)
        return data

    def _new_reader(self) -> Callable[[str], bytes] | None:
        # Only here: most processes read no recordings.
        from trainers.storage.s3_reader import reader_of  # noqa: PLC0415

        region = self.connection.region() or self._region_of_bucket()
        return reader_of(self.bucket, self.connection.endpoint_url, region, self.retry)

    def read_part(self, key: str, start: int, most: int) -> bytes:
        return self._read(key, most, Range=f"bytes={start}-{start + most - 1}")

    def _read(self, key: str, most: int | None = None, **options: str) -> bytes:
        def read(name: str) -> bytes:
            try:
                response = self._client.get_object(Bucket=self.bucket, Key=name, **options)
            except ClientError as error:
                if error_code(error) == _BEYOND_THE_END:
                    return b""
                raise
            with closing(response["Body"]) as body:
                # A service that knows no ranges sends all, which is not read. Only a complete read checks the length.
                complete = most is None or response.get("ContentLength", most + 1) <= most
                data: bytes = body.read() if complete else body.read(most)
            return data

        return self._run("read", key, read)

    def write_bytes(self, key: str, data: bytes) -> None:
        self._run("write", key, lambda name: self._client.put_object(Bucket=self.bucket, Key=name, Body=data))

    def append_line(self, key: str, line: str) -> None:
        so_far = self.read_bytes(key) if self.exists(key) else b""
        # Only the write is tried again, with the same bytes: a second read might find the line there.
        self.write_bytes(key, so_far + with_line(so_far, line))

    def entry(self, key: str) -> Entry | None:
        head = self._run("look for", key, self._head)
        return Entry(key, head["ContentLength"], head["LastModified"].timestamp()) if head is not None else None

    def list_files(self, prefix: str = "") -> list[Entry]:
        def entries() -> list[Entry]:
            items = (item for page in self._pages(Prefix=self._below(prefix)) for item in page.get("Contents", []))
            # Consoles mark an empty folder by an object whose key ends with a slash.
            found = [self._entry(item) for item in items if not item["Key"].endswith(("/", PART_SUFFIX))]
            return sorted(found, key=lambda entry: entry.key)

        return self._retry("list", self.url(clean_prefix(prefix)), entries)

    def list_some(self, keys: Collection[str]) -> dict[str, Entry] | None:
        """See Storage. A bucket is listed from the first of the keys to the last: a thousand objects a request."""
        names = {self._object(key) for key in keys}
        if not names:
            return {}
        # Strings have the order in which a bucket is listed, that of UTF-8.
        first, last = min(names), max(names)
        # A prefix in S3 is one of characters. A listing starts behind a name: less one character, before `first`.
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

    def _delete_all(self, folder: str) -> None:
        # One by one: services differ in the checksum that they require of S3's request that deletes many.
        in_parallel(lambda entry: self.delete(entry.key), self.list_files(folder))

    def create_exclusive(self, key: str, data: bytes) -> bool:
        creator = uuid4().hex

        def create(name: str) -> bool:
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=name, Body=data, IfNoneMatch="*", Metadata={_CREATOR: creator}
                )
            except ClientError as error:
                if error_code(error) not in ("PreconditionFailed", "412"):
                    raise
                # It may exist because an earlier try succeeded and only its response was lost.
                head = self._head(name)
                return head is not None and head["Metadata"].get(_CREATOR) == creator
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

    def download_file(self, key: str, local: Path) -> None:
        part = local.parent / f".{uuid4().hex}{PART_SUFFIX}"

        def download(name: str) -> None:
            local.parent.mkdir(parents=True, exist_ok=True)
            self._client_of_parts.download_file(self.bucket, name, str(part), Config=_TRANSFER)
            part.replace(local)

        try:
            self._run(f"download to {local} from", key, download)
        finally:
            part.unlink(missing_ok=True)

    def _for_probe(self) -> Storage:
        connection = connection_to(self.connection.endpoint_url, connect_timeout_s=3.0, read_timeout_s=10.0)
        return replace(self, connection=connection, retry=_PROBE_RETRY)

    def for_pyarrow(self) -> tuple[str, fs.FileSystem | None]:
        """See Storage. The filesystem finds the credentials itself, so none are pickled with it."""
        endpoint = urlsplit(self.connection.endpoint_url or "")

        def make() -> fs.FileSystem:
            return S3Filesystem(
                self.retry.attempts,
                region=self.connection.region() or self._region_of_bucket(),
                scheme=endpoint.scheme or "https",
                endpoint_override=f"{endpoint.netloc}{endpoint.path}" or None,
                connect_timeout=10.0,
                request_timeout=60.0,
                tls_ca_file_path=os.environ.get("AWS_CA_BUNDLE"),
            )

        return self.url().removeprefix("s3://"), self._retry("open", self.url(), make)

    def _region_of_bucket(self) -> str:
        try:
            region: str = fs.resolve_s3_region(self.bucket)
        except OSError as error:
            raise StorageError(
                f"cannot open {self.url()}: AWS does not report the region of the bucket {self.bucket!r}; "
                "check its name and the network, or set AWS_REGION"
            ) from error
        return region

    @property
    def _client(self) -> Any:
        return self.connection.client()

    @property
    def _client_of_parts(self) -> Any:
        """For files that may be sent in parts, each of which is tried several times."""
        return self.connection.client(self.retry.part_attempts)

    def _pages(self, **options: str) -> Iterable[dict[str, Any]]:
        pages: Iterable[dict[str, Any]] = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, **options
        )
        return pages

    def _object(self, key: str) -> str:
        return f"{self.prefix}/{clean_key(key)}" if self.prefix else clean_key(key)

    def _entry(self, item: dict[str, Any]) -> Entry:
        return Entry(self._key(item["Key"]), item["Size"], item["LastModified"].timestamp(), item["ETag"])

    def _key(self, name: str) -> str:
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name

    def _below(self, prefix: str) -> str:
        folder = self._object(prefix) if prefix else self.prefix
        return f"{folder}/" if folder else ""

    def _head(self, name: str) -> dict[str, Any] | None:
        """What is known of an object without its content; None if there is no such object."""
        try:
            head: dict[str, Any] = self._client.head_object(Bucket=self.bucket, Key=name)
        except ClientError as error:
            if error_code(error) in ("404", "NoSuchKey", "NotFound"):
                return None
            raise
        return head

    def _run(self, action: str, key: str, call: Callable[[str], T]) -> T:
        """Calls `call` with the name in the bucket of `key`."""
        name = self._object(key)
        return self._retry(action, self.url(key), lambda: call(name))

    def _retry(self, action: str, url: str, call: Callable[[], T]) -> T:
        explain = partial(explain_s3_error, bucket=self.bucket, endpoint=self.connection.endpoint_url or "AWS")
        return self.retry.run(call, action=action, url=url, explain=explain)


class S3Filesystem(fs.S3FileSystem):  # type: ignore[misc]
    """pyarrow's own, which forgets its number of tries when Ray sends it to other processes; this one keeps it."""

    def __init__(self, attempts: int, **options: Any):
        super().__init__(retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=attempts), **options)
        self._made_with = (attempts, options)

    def __reduce__(self) -> tuple[Any, ...]:
        attempts, options = self._made_with
        return partial(S3Filesystem, **options), (attempts,)
