"""Azure Blob Storage: `az://container/prefix`, in the storage account that the config or a variable names."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from obstore.store import AzureStore

from trainers.config.storage_location import AZ_SCHEME, AZURE_ACCOUNT_VARIABLES, AZURE_ENDPOINT_VARIABLES
from trainers.errors import StorageError
from trainers.storage.bucket import checked_endpoint
from trainers.storage.objects.object_service import ObjectService

CONNECTION_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
_KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
_CREDENTIALS = (
    f"set {CONNECTION_VARIABLE} or AZURE_STORAGE_ACCOUNT_KEY, set AZURE_CLIENT_ID and what belongs to it, or give the "
    "node a managed identity"
)
# Of the emulator on this machine; the key is the same everywhere.
# https://learn.microsoft.com/en-us/azure/storage/common/storage-use-azurite
_DEVELOPMENT = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


@dataclass(frozen=True)
class AzureBlobs(ObjectService):
    """A storage account of Azure, or of an emulator.

    Attributes:
        account: Its name.
    """

    scheme = AZ_SCHEME
    name = "Azure"
    variables = ("AZURE_",)
    set_credentials = _CREDENTIALS
    allow = "give the identity the role Storage Blob Data Contributor on the container {bucket!r}"
    check_endpoint = "check the network, run.az_account, run.az_endpoint_url and the AZURE_STORAGE_ variables"

    account: str

    @classmethod
    def of(cls, account: str | None, endpoint_url: str | None) -> "AzureBlobs":
        """The account that a config or the variables name.

        Raises:
            StorageError: none is named, or the endpoint is not the URL of a service.
        """
        connection = _connection()
        name = account or _first(AZURE_ACCOUNT_VARIABLES) or connection.get("AccountName")
        if not name:
            raise StorageError(
                "az:// is of no storage account: name it (run.az_account, or AZURE_STORAGE_ACCOUNT_NAME), or set "
                f"{CONNECTION_VARIABLE}"
            )
        url = endpoint_url or _first(AZURE_ENDPOINT_VARIABLES)
        if url is None and connection.get("AccountName") in (None, name):
            url = _endpoint_in(connection, name)
        return cls(checked_endpoint("az_endpoint_url", url, _CREDENTIALS) if url else None, name)

    @property
    def endpoint(self) -> str:
        return self.endpoint_url or f"Azure, account {self.account}"

    def new_store(self, bucket: str, **options: Any) -> Any:
        config: dict[str, Any] = {"account_name": self.account}
        if self.endpoint_url is not None:
            config["endpoint"] = self.endpoint_url
        connection = _connection()
        if connection.get("AccountName") in (None, self.account) and _first(_KEY_VARIABLES) is None:
            given = {"account_key": connection.get("AccountKey"), "sas_key": connection.get("SharedAccessSignature")}
            config |= {name: value.removeprefix("?") for name, value in given.items() if value}
        elif key := _first(_KEY_VARIABLES):
            config["account_key"] = key
        return AzureStore(bucket, config=config, **options)  # type: ignore[arg-type]


def _first(variables: Sequence[str]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name))), None)


def _connection() -> Mapping[str, str]:
    """The parts of the connection string; none where there is none."""
    parts = (part.partition("=") for part in os.environ.get(CONNECTION_VARIABLE, "").split(";"))
    found = {name.strip(): value.strip() for name, _, value in parts if name.strip()}
    return _DEVELOPMENT if found.get("UseDevelopmentStorage", "").lower() == "true" else found


def _endpoint_in(connection: Mapping[str, str], account: str) -> str | None:
    suffix = connection.get("EndpointSuffix")
    protocol = connection.get("DefaultEndpointsProtocol", "https")
    return connection.get("BlobEndpoint") or (f"{protocol}://{account}.blob.{suffix}" if suffix else None)
