"""Defines the access to object storage services, and what users can do about errors.

These are Google Cloud Storage, `gs://bucket/prefix`, and Azure Blob Storage, `az://container/prefix`, in the storage
account that the config or an environment variable names.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore

from trainers.config.storage_location import (
    AZ_SCHEME,
    AZURE_ACCOUNT_VARIABLES,
    AZURE_ENDPOINT_VARIABLES,
    GOOGLE_ENDPOINT_VARIABLES,
    GS_SCHEME,
)
from trainers.errors import StorageError

(EMULATOR_VARIABLE,) = GOOGLE_ENDPOINT_VARIABLES
TOKEN_VARIABLE = "GOOGLE_BEARER_TOKEN"
_GOOGLE_CREDENTIALS = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the file of an account, sign in (gcloud auth application-default login), or "
    "give the node a service account"
)
CONNECTION_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
_KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
_AZURE_CREDENTIALS = (
    f"set {CONNECTION_VARIABLE} or AZURE_STORAGE_ACCOUNT_KEY, set AZURE_CLIENT_ID and the variables that go with it, "
    "or give the node a managed identity"
)
# Settings of the emulator Azurite on this machine; its key is public.
# https://learn.microsoft.com/en-us/azure/storage/common/storage-use-azurite
_DEVELOPMENT = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


@dataclass(frozen=True)
class ObjectService(ABC):
    """Access to the buckets of one service, without credentials, which each process reads itself.

    Attributes:
        name: Name in messages.
        variables: Prefixes of the names of its environment variables.
        set_credentials: The fix for missing or wrong credentials.
        allow: The fix for missing permissions.
        allow_reading: The fix for a missing permission to read.
        check_endpoint: The fix if the server does not respond.
        trust: The fix if the server's certificate is not trusted.
        endpoint_url: URL of the server; None for the service's own.
    """

    scheme: ClassVar[str]
    name: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    set_credentials: ClassVar[str]
    allow: ClassVar[str]
    allow_reading: ClassVar[str]
    check_endpoint: ClassVar[str]
    trust: ClassVar[str] = "set SSL_CERT_FILE to the certificate of the authority that signed it"

    endpoint_url: str | None

    @property
    def endpoint(self) -> str:
        """The server, for messages."""
        return self.endpoint_url or self.name

    @abstractmethod
    def new_store(self, bucket: str, **options: Any) -> Any:
        """Returns an obstore store for a bucket, with the credentials of this process.

        `options` are obstore's `client_options` and `retry_config`.

        Raises:
            obstore.exceptions.BaseError, ObjectError: the credentials cannot be read, or are inconsistent.
        """


def checked_endpoint(field: str, url: str, fix: str) -> str:
    """Returns the URL of a server without a trailing slash.

    Raises:
        StorageError: It is not the URL of a server, or contains credentials.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query:
        # The URL is not shown, since it has a password or a signature.
        raise StorageError(f"{field} contains credentials: {fix}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise StorageError(f"{field} {url!r} is not the URL of a service: give http(s)://host:port")
    return url.rstrip("/")


@dataclass(frozen=True)
class GoogleStorage(ObjectService):
    """Google's own service, or an emulator."""

    scheme = GS_SCHEME
    name = "Google Cloud Storage"
    variables = ("GOOGLE_", EMULATOR_VARIABLE)
    set_credentials = _GOOGLE_CREDENTIALS
    allow = allow_reading = "give the account the role roles/storage.objectUser on the bucket {bucket!r}"
    check_endpoint = f"check the network, run.gs_endpoint_url and {EMULATOR_VARIABLE}"

    @classmethod
    def of(cls, endpoint_url: str | None) -> "GoogleStorage":
        """Returns the service in the config, or in STORAGE_EMULATOR_HOST; raises StorageError if it is not a URL."""
        found = endpoint_url or os.environ.get(EMULATOR_VARIABLE)
        if not found:
            return cls(None)
        # The variable may have only host and port.
        url = found if "://" in found else f"http://{found}"
        return cls(checked_endpoint("gs_endpoint_url", url, _GOOGLE_CREDENTIALS))

    def new_store(self, bucket: str, **options: Any) -> Any:
        if self.endpoint_url is None:
            return GCSStore(bucket, **options)
        config: dict[str, Any] = {"base_url": self.endpoint_url}
        if not (urlsplit(self.endpoint_url).hostname or "").endswith(".googleapis.com"):
            # Only Google's own servers get an account's token, since a server could use a token that it gets.
            config["bearer_token"] = os.environ.get(TOKEN_VARIABLE) or "none"
        return GCSStore(bucket, config=config, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AzureBlobs(ObjectService):
    """A storage account of Azure, or of an emulator, by its name."""

    scheme = AZ_SCHEME
    name = "Azure"
    variables = ("AZURE_",)
    set_credentials = _AZURE_CREDENTIALS
    allow = allow_reading = "give the identity the role Storage Blob Data Contributor on the container {bucket!r}"
    check_endpoint = "check the network, run.az_account, run.az_endpoint_url and the AZURE_STORAGE_ variables"

    account: str

    @classmethod
    def of(cls, account: str | None, endpoint_url: str | None) -> "AzureBlobs":
        """Returns the account in the config, or in environment variables.

        Raises:
            StorageError: No account is named, or the endpoint is not the URL of a service.
        """
        connection = _connection()
        name = account or first_of(AZURE_ACCOUNT_VARIABLES) or connection.get("AccountName")
        if not name:
            raise StorageError(
                "az:// needs a storage account: name it (run.az_account, or AZURE_STORAGE_ACCOUNT_NAME), or set "
                f"{CONNECTION_VARIABLE}"
            )
        url = endpoint_url or first_of(AZURE_ENDPOINT_VARIABLES)
        if url is None and connection.get("AccountName") in (None, name):
            url = _endpoint_in(connection, name)
        return cls(checked_endpoint("az_endpoint_url", url, _AZURE_CREDENTIALS) if url else None, name)

    @property
    def endpoint(self) -> str:
        return self.endpoint_url or f"Azure, account {self.account}"

    def new_store(self, bucket: str, **options: Any) -> Any:
        config: dict[str, Any] = {"account_name": self.account}
        if self.endpoint_url is not None:
            config["endpoint"] = self.endpoint_url
        connection = _connection()
        if connection.get("AccountName") in (None, self.account) and first_of(_KEY_VARIABLES) is None:
            given = {"account_key": connection.get("AccountKey"), "sas_key": connection.get("SharedAccessSignature")}
            config |= {name: value.removeprefix("?") for name, value in given.items() if value}
        elif key := first_of(_KEY_VARIABLES):
            config["account_key"] = key
        return AzureStore(bucket, config=config, **options)  # type: ignore[arg-type]


def first_of(variables: Sequence[str]) -> str | None:
    """Returns the value of the first environment variable that is set; None if none is."""
    return next((value for name in variables if (value := os.environ.get(name))), None)


def _connection() -> Mapping[str, str]:
    """Returns the parts of the connection string; empty if there is none."""
    parts = (part.partition("=") for part in os.environ.get(CONNECTION_VARIABLE, "").split(";"))
    found = {name.strip(): value.strip() for name, _, value in parts if name.strip()}
    return _DEVELOPMENT if found.get("UseDevelopmentStorage", "").lower() == "true" else found


def _endpoint_in(connection: Mapping[str, str], account: str) -> str | None:
    suffix = connection.get("EndpointSuffix")
    protocol = connection.get("DefaultEndpointsProtocol", "https")
    return connection.get("BlobEndpoint") or (f"{protocol}://{account}.blob.{suffix}" if suffix else None)
