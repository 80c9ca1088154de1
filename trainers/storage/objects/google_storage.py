"""Google Cloud Storage: `gs://bucket/prefix`."""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from obstore.store import GCSStore

from trainers.config.storage_location import GOOGLE_ENDPOINT_VARIABLES, GS_SCHEME
from trainers.storage.bucket import checked_endpoint
from trainers.storage.objects.object_service import ObjectService

(EMULATOR_VARIABLE,) = GOOGLE_ENDPOINT_VARIABLES
TOKEN_VARIABLE = "GOOGLE_BEARER_TOKEN"
_CREDENTIALS = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the file of an account, sign in (gcloud auth application-default login), or "
    "give the node a service account"
)


@dataclass(frozen=True)
class GoogleStorage(ObjectService):
    """Google's own service, or an emulator."""

    scheme = GS_SCHEME
    name = "Google Cloud Storage"
    variables = ("GOOGLE_", EMULATOR_VARIABLE)
    set_credentials = _CREDENTIALS
    allow = "give the account the role roles/storage.objectUser on the bucket {bucket!r}"
    check_endpoint = f"check the network, run.gs_endpoint_url and {EMULATOR_VARIABLE}"

    @classmethod
    def of(cls, endpoint_url: str | None) -> "GoogleStorage":
        """The service that a config names, or STORAGE_EMULATOR_HOST.

        Raises:
            StorageError: it is not the URL of a service.
        """
        found = endpoint_url or os.environ.get(EMULATOR_VARIABLE)
        if not found:
            return cls(None)
        # The variable may be a host and a port alone.
        url = found if "://" in found else f"http://{found}"
        return cls(checked_endpoint("gs_endpoint_url", url, _CREDENTIALS))

    def new_store(self, bucket: str, **options: Any) -> Any:
        if self.endpoint_url is None:
            return GCSStore(bucket, **options)
        config: dict[str, Any] = {"base_url": self.endpoint_url}
        if not (urlsplit(self.endpoint_url).hostname or "").endswith(".googleapis.com"):
            # Who is sent an account's token can use it: no other server than Google's gets one.
            config["bearer_token"] = os.environ.get(TOKEN_VARIABLE) or "none"
        return GCSStore(bucket, config=config, **options)  # type: ignore[arg-type]
