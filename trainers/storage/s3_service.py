"""S3, and services with the same protocol: obstore moves the bytes, with boto3's settings and credentials."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import boto3
import botocore
import botocore.session
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as boto
from botocore.config import Config
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from trainers.config.storage_location import ENDPOINT_VARIABLES, S3_SCHEME, S3Access
from trainers.storage.object_errors import ErrorKind, ObjectError, error_in
from trainers.storage.object_services import ObjectService, checked_endpoint, first_of

# boto3 returns credentials valid for at least ten minutes; obstore requests new ones five minutes before they expire.
_CREDENTIALS_TTL = timedelta(minutes=10)
# S3 copies at most 5 GiB in one request; below that, one request is a complete copy or none.
_COPY = TransferConfig(multipart_threshold=2**30, multipart_chunksize=2**29, preferred_transfer_client="classic")
_NO_CREDENTIALS = (
    boto.ProfileNotFound,
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
# The kinds of boto3's errors; the first match counts.
_BOTO_ERRORS = (
    (_NO_CREDENTIALS, ErrorKind.NO_CREDENTIALS),
    ((boto.SSLError, boto.EndpointConnectionError, boto.ConnectTimeoutError), ErrorKind.UNREACHABLE),
    ((boto.HTTPClientError,), ErrorKind.BROKEN),
    ((boto.BotoCoreError, Boto3Error), ErrorKind.SETTINGS),
)


@dataclass(frozen=True)
class S3(ObjectService):
    """AWS's own service, or another with its protocol; the fields are those of S3Access."""

    scheme = S3_SCHEME
    name = "S3"
    variables = ("AWS_", "REQUESTS_CA_BUNDLE")
    set_credentials = (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE or run.s3_profile to a profile in this node's "
        "~/.aws/config, or give the node a role; for a public bucket set run.s3_anonymous"
    )
    allow = (
        "allow s3:GetObject, s3:PutObject and s3:DeleteObject on its objects and s3:ListBucket on the bucket {bucket!r}"
    )
    allow_reading = "allow s3:GetObject on its objects and s3:ListBucket on the bucket {bucket!r}"
    check_endpoint = "check the network, s3_endpoint_url and AWS_ENDPOINT_URL"
    trust = "set AWS_CA_BUNDLE to the certificate of the authority that signed it"

    region: str | None
    profile: str | None
    anonymous: bool

    @classmethod
    def of(cls, access: S3Access) -> Self:
        """Returns the service in the config or in AWS's variables; raises StorageError if its endpoint is not valid."""
        url = access.endpoint_url or first_of(ENDPOINT_VARIABLES)
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        checked = checked_endpoint("s3_endpoint_url", url, fix) if url else None
        return cls(checked, access.region, access.profile, access.anonymous)

    def new_store(self, bucket: str, **options: Any) -> "_Store":
        with _converted_errors():
            settings = botocore.session.Session(profile=self.profile)
            session = boto3.session.Session(botocore_session=settings)
            if not self.anonymous and session.get_credentials() is None:
                raise ObjectError(ErrorKind.NO_CREDENTIALS, "boto3 finds none")
            # Services other than AWS ignore the region, but clients need one.
            default = "us-east-1" if self.endpoint_url else None
            region = self.region or os.environ.get("AWS_REGION") or session.region_name or default
            new_client = partial(self._new_client, session, region, **options)
            url = f"{self.endpoint_url}/{bucket}"
            if self.endpoint_url is None:
                url, region = located(new_client(), bucket)
        client_options: Any = {**options["client_options"], "allow_http": url.startswith("http://")}
        with _trusting(settings.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")):
            store = _Store(
                bucket,
                # This option overrides all variables. "Virtual hosted" means that the URL has the bucket.
                config={
                    "aws_endpoint_url_s3": url,
                    "virtual_hosted_style_request": True,
                    "region": str(region),
                    "skip_signature": self.anonymous,
                    # Services differ in the request that deletes several objects, and in the checksum that it requires.
                    "disable_bulk_delete": True,
                },
                client_options=client_options,
                retry_config=options["retry_config"],
                credential_provider=None if self.anonymous else Boto3CredentialProvider(session, ttl=_CREDENTIALS_TTL),
            )
        store.bucket, store.new_client = bucket, new_client
        return store

    def _new_client(
        self, session: boto3.session.Session, region: str | None, client_options: Any, retry_config: Any
    ) -> Any:
        config = Config(
            connect_timeout=client_options["connect_timeout"].total_seconds(),
            read_timeout=client_options["read_timeout"].total_seconds(),
            retries={"mode": "standard", "total_max_attempts": retry_config["max_retries"] + 1},
            signature_version=botocore.UNSIGNED if self.anonymous else None,
        )
        if self.endpoint_url:
            # Not every service has a host name for each bucket, or accepts the checksums that AWS requires.
            other = Config(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            config = config.merge(other)
        return session.client("s3", endpoint_url=self.endpoint_url, region_name=region, config=config)


class _Store(S3Store):
    """A store that copies and lists with boto3, which copies large objects in parts and lists any object name."""

    bucket: str
    new_client: Callable[[], Any]

    @cached_property
    def boto3_client(self) -> Any:
        """A client, made on first use, since that takes 130 ms."""
        return self.new_client()

    def list(self, prefix: str | None = None, *, offset: str | None = None, **_: Any) -> Any:
        start = {"StartAfter": offset} if offset else {}
        for page in self._pages(prefix, **start):
            yield [
                {
                    "path": each["Key"],
                    "size": each["Size"],
                    "last_modified": each["LastModified"],
                    "e_tag": each["ETag"],
                }
                for each in page.get("Contents", [])
            ]

    def list_with_delimiter(self, prefix: str | None = None, **_: Any) -> Any:
        pages = self._pages(prefix, Delimiter="/")
        found = (each["Prefix"] for page in pages for each in page.get("CommonPrefixes", []))
        return {"common_prefixes": [name.removesuffix("/") for name in found]}

    def _pages(self, prefix: str | None, **options: str) -> Iterator[dict[str, Any]]:
        with _converted_errors():
            pages = self.boto3_client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self.bucket, Prefix=f"{prefix}/" if prefix else "", **options)

    def copy(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        with _converted_errors():
            self.boto3_client.copy({"Bucket": self.bucket, "Key": from_}, self.bucket, to, Config=_COPY)


def located(client: Any, bucket: str) -> tuple[str, str]:
    """Returns the URL of a bucket and its region, as boto3 finds them by AWS's settings and redirects."""
    urls: list[str] = []
    client.meta.events.register_first("before-send.s3.HeadBucket", lambda request, **_: urls.append(request.url))
    try:
        response = client.head_bucket(Bucket=bucket)
    except boto.ClientError as error:
        # The response has the region even if permission is denied; the next request reports that error.
        response = error.response
    region = response["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return urls[-1].rstrip("/"), region or client.meta.region_name


@contextmanager
def _trusting(bundle: str | None) -> Iterator[None]:
    """Returns a context in which obstore trusts only the certificates in a file or folder; the system's if None.

    obstore has no option for them, but reads a variable when a client is made.
    """
    name = "SSL_CERT_DIR" if bundle and Path(bundle).is_dir() else "SSL_CERT_FILE"
    before = os.environ.get(name)
    if bundle:
        os.environ[name] = bundle
    try:
        yield
    finally:
        if bundle:
            del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Returns a context that converts boto3's errors to ObjectError."""
    try:
        yield
    except boto.ClientError as error:
        found = error.response.get("Error", {})
        status, code = error.response["ResponseMetadata"].get("HTTPStatusCode", 0), found.get("Code", "")
        # The response to a HEAD request has no body, so its code is the HTTP status.
        body = f"<Code>{code}</Code><Message>{found.get('Message', '')}</Message>" if not code.isdigit() else ""
        method = "GET" if error.operation_name.startswith(("Get", "Head", "List")) else "PUT"
        raise error_in(
            f"Error performing {method} - Server returned non-2xx status code: {status}: {body}", error
        ) from error
    except (boto.BotoCoreError, Boto3Error) as error:
        kind = next(kind for errors, kind in _BOTO_ERRORS if isinstance(error, errors))
        raise ObjectError(kind, str(error).partition("\n")[0]) from error
