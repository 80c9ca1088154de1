"""Reads small objects of S3 with obstore: one request each, in threads that release the interpreter's lock.

From loopback, obstore computes 0.19 to 0.23 ms per object. pyarrow's filesystem, which requests the size first,
computes 0.53 ms, and boto3 more than a millisecond. Loading this module takes 40 ms.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import boto3
import botocore.session
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from trainers.config.storage_location import ENDPOINT_VARIABLES, S3Access
from trainers.storage.objects.forked_client import is_forked
from trainers.storage.retry import RetryPolicy

_CONNECT_TIMEOUT = timedelta(seconds=10)
# Without a byte received. A complete object may take longer, on a slow connection.
_READ_TIMEOUT = timedelta(seconds=60)
_TIMEOUT = timedelta(minutes=10)
# From the first attempt to the beginning of the last.
_RETRY_TIMEOUT = timedelta(minutes=3)
# boto3 returns credentials valid for at least ten minutes; obstore requests new ones five minutes before they expire.
_CREDENTIALS_TTL = timedelta(minutes=10)
# Partitions of AWS whose hosts are named as in `_aws_url`.
_PARTITIONS = ("aws", "aws-us-gov")


def reader_of(bucket: str, access: S3Access, retry: RetryPolicy) -> Callable[[str], bytes] | None:
    """Returns a function that reads an object by name; None if it would not read like boto3, and in a forked process.

    The function raises FileNotFoundError if there is no such object, and obstore's own errors, ValueError or OSError.

    Args:
        bucket: The bucket's name.
        access: Options of access, with the region; services other than AWS have buckets in the path of their URLs.
        retry: Attempts of a request, and the pauses between them.

    Raises:
        ValueError: boto3 finds no credentials.
        BotoCoreError: AWS's config cannot be read.
    """
    if is_forked():
        return None
    endpoint_url, region = access.endpoint_url, access.region or ""
    settings = botocore.session.Session(profile=access.profile)
    session = boto3.session.Session(region_name=region, botocore_session=settings)
    url = f"{endpoint_url}/{bucket}" if endpoint_url else _aws_url(bucket, region)
    is_secure = urlsplit(url).scheme == "https"
    if is_secure and _has_certificates(settings):
        return None
    if not endpoint_url and (_has_address(settings) or session.get_partition_for_region(region) not in _PARTITIONS):
        return None
    store = S3Store(
        bucket,
        # The endpoint option that takes precedence over all variables; "virtual hosted": it includes the bucket.
        config={
            "aws_endpoint_url_s3": url,
            "virtual_hosted_style_request": True,
            "region": region,
            "skip_signature": access.anonymous,
        },
        client_options={
            "allow_http": not is_secure,
            "connect_timeout": _CONNECT_TIMEOUT,
            "read_timeout": _READ_TIMEOUT,
            "timeout": _TIMEOUT,
        },
        retry_config={
            "max_retries": retry.attempts - 1,
            "retry_timeout": _RETRY_TIMEOUT,
            "backoff": {
                "init_backoff": timedelta(seconds=retry.first_delay_s),
                "max_backoff": timedelta(seconds=retry.max_delay_s),
                "base": 2,
            },
        },
        credential_provider=None if access.anonymous else Boto3CredentialProvider(session, ttl=_CREDENTIALS_TTL),
    )
    return partial(_read, store)


def _read(store: S3Store, name: str) -> bytes:
    result = store.get(name)
    data = result.bytes().to_bytes()
    size_bytes = result.meta["size"]
    if len(data) != size_bytes:
        raise OSError(f"{name} has {size_bytes} bytes, of which {len(data)} were received")
    return data


def _aws_url(bucket: str, region: str) -> str:
    host = f"s3.{region}.amazonaws.com"
    # The certificate is valid for one label before the host's name.
    return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"


def _has_certificates(settings: botocore.session.Session) -> bool:
    """Returns True if boto3 trusts only the user's certificates; obstore would trust the system's as well."""
    return bool(settings.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE"))


def _has_address(settings: botocore.session.Session) -> bool:
    """Returns True if AWS's variables or config name another service, or other hosts of AWS."""
    profile, s3 = settings.get_scoped_config(), settings.get_config_variable("s3") or {}
    return any(
        (
            *(os.environ.get(name) for name in ENDPOINT_VARIABLES),
            *(profile.get(name) for name in ("endpoint_url", "services")),
            *(settings.get_config_variable(name) for name in ("use_fips_endpoint", "use_dualstack_endpoint")),
            *(s3.get(name) for name in ("use_accelerate_endpoint", "use_dualstack_endpoint")),
        )
    )
