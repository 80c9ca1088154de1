"""Defines locations of storage in a config, and the options of access. `trainers.storage` opens these locations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trainers.errors import ConfigError

S3_SCHEME, GS_SCHEME, AZ_SCHEME = "s3://", "gs://", "az://"
HUB_SCHEME = "hf://"
# The URL prefixes of storage; any other path is a folder.
URL_SCHEMES = (S3_SCHEME, GS_SCHEME, AZ_SCHEME)
SUPPORTED = "a folder, or an s3://bucket/…, gs://bucket/… or az://container/… URL"
# Variables with the endpoint of a storage, for a config that has none; the first that is set is used.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
GOOGLE_ENDPOINT_VARIABLES = ("STORAGE_EMULATOR_HOST",)
AZURE_ENDPOINT_VARIABLES = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
AZURE_ACCOUNT_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
# The variables that are read if a field of the run part is not set, by scheme and field.
VARIABLES_OF_FIELDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    S3_SCHEME: {"s3_endpoint_url": ENDPOINT_VARIABLES},
    GS_SCHEME: {"gs_endpoint_url": GOOGLE_ENDPOINT_VARIABLES},
    AZ_SCHEME: {"az_account": AZURE_ACCOUNT_VARIABLES, "az_endpoint_url": AZURE_ENDPOINT_VARIABLES},
}
# The start of a URL, even if it lost a slash when it was handled as a path, or if a bucket has no slashes.
_LIKE_A_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/|(s3|gs|az):", re.IGNORECASE)


@dataclass(frozen=True)
class S3Access:
    """Access to an S3 bucket, with the fields of `run.s3_buckets`. Each process has its own credentials."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False


@dataclass(frozen=True)
class StorageOptions:
    """Options of access to storage, in addition to its URL, as in the fields of the run part of the same names."""

    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    s3_profile: str | None = None
    s3_anonymous: bool = False
    s3_buckets: Mapping[str, S3Access] = field(default_factory=dict, hash=False)
    gs_endpoint_url: str | None = None
    az_account: str | None = None
    az_endpoint_url: str | None = None

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> "StorageOptions":
        """Returns the options in a config's run part; the part of an older version may lack some."""
        given = {each.name: run[each.name] for each in fields(cls) if run.get(each.name) is not None}
        buckets = {bucket: S3Access(**dict(access)) for bucket, access in given.pop("s3_buckets", {}).items()}
        return cls(**given, s3_buckets=buckets)

    def s3_access(self, bucket: str) -> S3Access:
        """Returns the options of access to a bucket of s3://."""
        usual = S3Access(self.s3_endpoint_url, self.s3_region, self.s3_profile, self.s3_anonymous)
        return self.s3_buckets.get(bucket, usual)

    def servers(self) -> dict[str, str]:
        """Returns the URL of each server that is named, by field of the run part."""
        names = ("s3_endpoint_url", "gs_endpoint_url", "az_endpoint_url")
        named: dict[str, str | None] = {name: getattr(self, name) for name in names}
        named |= {f"s3_buckets.{bucket}.endpoint_url": each.endpoint_url for bucket, each in self.s3_buckets.items()}
        return {field: url for field, url in named.items() if url is not None}

    def identities(self) -> dict[str, tuple[str, str]]:
        """Returns, by field, the profile or account that it selects, and the variable that would select it instead."""
        profiles = {f"s3_buckets.{bucket}.profile": each.profile for bucket, each in self.s3_buckets.items()}
        profiles["s3_profile"] = self.s3_profile
        named = {field: (profile, "AWS_PROFILE") for field, profile in profiles.items() if profile is not None}
        return named | ({"az_account": (self.az_account, AZURE_ACCOUNT_VARIABLES[0])} if self.az_account else {})


DEFAULT_STORAGE_OPTIONS = StorageOptions()


def is_url(location: str) -> bool:
    """Returns True if a location is the URL of a storage, which means the same on every machine."""
    return location.startswith(URL_SCHEMES)


def is_web_url(location: str) -> bool:
    """Returns True if a location is the URL of a web server, which is only read."""
    return location.startswith(("https://", "http://"))


def is_hub_url(location: str) -> bool:
    """Returns True if a location is a file in a repository on the Hub, e.g. hf://datasets/name/train.tar."""
    return location.startswith(HUB_SCHEME)


def is_remote(location: str) -> bool:
    """Returns True if data at a location is on another machine: in a bucket, on a web server or on the Hub."""
    return is_url(location) or is_web_url(location) or is_hub_url(location)


def unreadable_url(location: str) -> str | None:
    """Returns why data at a location that looks like a URL cannot be read; None if it can be, or is at a path."""
    if is_hub_url(location):
        return None
    if not is_web_url(location):
        return unsupported_url(location)
    has_user = "@" in urlsplit(location).netloc
    return "it contains a user name: data with a login is read from a bucket, or a folder" if has_user else None


def unsupported_url(location: str) -> str | None:
    """Returns why a location that looks like a URL cannot be opened; None for a URL of a storage, a path or a Hub id.

    Without this, `hdfs://x` would be a folder named `hdfs:` in the working directory.
    """
    return None if is_url(location) else refused_url(location, SUPPORTED)


def refused_url(location: str, instead: str) -> str | None:
    """Returns why a location that looks like a URL is refused, without repeating the URL; None for other text."""
    found = _LIKE_A_URL.match(location)
    return f"{found[1] or found[2]}:// is not supported: give {instead}" if found is not None else None


def without_password(url: str) -> str:
    """Returns a text for messages; if it is a URL, without user, password and query."""
    before, at, rest = url.rpartition("@")
    scheme = f"{before.partition('://')[0]}://" if "://" in before else ""
    return (f"{scheme}…@{rest}" if at else url).partition("?")[0]


def is_absolute(path: str) -> bool:
    """Returns True if a storage or cache path means the same on every node: a URL, or an absolute folder."""
    return is_remote(path) or PurePosixPath(path).is_absolute()


def in_home(path: str) -> Path:
    """Returns a path with a leading `~` replaced by the user's home folder; raises ConfigError if that is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: the home folder is not known: set HOME, or write the absolute path") from None
