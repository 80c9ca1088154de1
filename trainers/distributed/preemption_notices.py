"""What a cloud says to a machine that it is about to take away, read from the machine's metadata service.

Standard library only: this runs on every node for as long as it lives. Protocols, as of 2026:

- AWS: IMDSv2, https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html. A rebalance
  recommendation is not read: it promises nothing, and may come hours before an interruption, or without one.
- GCP: https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption, and of host maintenance
  https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice; a live migration is no notice.
- Azure: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events; a freeze of seconds is no notice.
"""

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol

METADATA_URL = "http://169.254.169.254"
TIMEOUT_S = 2.0
# Azure sets its events up at the first question, which may take two minutes.
AZURE_TIMEOUT_S = 130.0
# How long a machine lives after a notice that gives no time.
AWS_LEFT_S, GCP_LEFT_S, GCP_MAINTENANCE_LEFT_S, AZURE_LEFT_S = 120.0, 30.0, 60.0, 30.0
AWS_TOKEN_TTL_S = 21_600
AZURE_EVENTS = {"Preempt", "Terminate", "Reboot", "Redeploy"}
# A proxy does not reach a link-local address.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Notice(NamedTuple):
    """That this machine is about to be taken away.

    Attributes:
        text: What the cloud says, for the log and for Ray.
        at_s: When it may be gone; seconds since 1970, UTC.
    """

    text: str
    at_s: float


class Response(NamedTuple):
    """A response of a metadata service.

    Attributes:
        status: HTTP status.
        body: Its text.
        headers: Its headers, by names in lower case.
    """

    status: int
    body: str
    headers: Mapping[str, str]


def ask(url: str, headers: Mapping[str, str], *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> Response:
    """Asks a metadata service.

    Raises:
        OSError: nobody responds.
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            body = response.read().decode("utf-8", "replace").strip()
            return Response(response.status, body, {name.lower(): value for name, value in response.headers.items()})
    except HTTPException as error:
        raise OSError(f"{url} does not answer as HTTP servers do: {error}") from error
    except urllib.error.HTTPError as error:
        return Response(error.code, "", {name.lower(): value for name, value in error.headers.items()})


class Cloud(Protocol):
    """A cloud's metadata service."""

    name: str

    def is_here(self) -> bool:
        """Whether this machine is one of this cloud's.

        Raises:
            OSError: nobody responds.
        """

    def notice(self, now_s: float) -> Notice | None:
        """What it says of this machine's end; None: nothing.

        Args:
            now_s: Seconds since 1970, UTC.

        Raises:
            OSError: nobody responds, or not as the protocol says.
        """


@dataclass
class Aws:
    """The instance metadata service of EC2, version 2 only."""

    url: str
    name: str = "AWS"
    _token: str | None = None

    def is_here(self) -> bool:
        """Whether it issues a token."""
        self._token = None
        return self._get("instance-id").status == 200

    def notice(self, now_s: float) -> Notice | None:
        """The interruption of a spot instance, two minutes before."""
        response = self._get("spot/instance-action")
        if response.status == 404:
            return None
        action = _read_json(response, self.name)
        at_s = now_s + AWS_LEFT_S
        with contextlib.suppress(KeyError, TypeError, ValueError):
            at_s = datetime.fromisoformat(action["time"]).timestamp()
        return Notice(f"AWS: the instance is to {action.get('action', 'end')}", at_s)

    def _get(self, path: str) -> Response:
        response = Response(401, "", {})
        for _ in range(2):
            if self._token is None:
                issued = ask(
                    f"{self.url}/latest/api/token",
                    {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)},
                    method="PUT",
                )
                if issued.status != 200:
                    return issued
                self._token = issued.body
            response = ask(f"{self.url}/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})
            if response.status != 401:
                break
            # The token has expired.
            self._token = None
        return response


@dataclass
class Gcp:
    """The metadata server of Compute Engine."""

    url: str
    name: str = "GCP"

    def is_here(self) -> bool:
        """Whether it says so in its responses."""
        return ask(f"{self.url}/computeMetadata/v1/", self._headers).headers.get("metadata-flavor") == "Google"

    def notice(self, now_s: float) -> Notice | None:
        """The preemption of a spot machine, 30 s before, or a maintenance that ends the machine."""
        if self._get("preempted").upper() == "TRUE":
            return Notice("GCP: the instance is preempted", now_s + GCP_LEFT_S)
        if self._get("maintenance-event").startswith("TERMINATE"):
            return Notice("GCP: maintenance of its host ends the instance", now_s + GCP_MAINTENANCE_LEFT_S)
        return None

    def _get(self, name: str) -> str:
        response = ask(f"{self.url}/computeMetadata/v1/instance/{name}", self._headers)
        if response.status != 200:
            raise OSError(f"GCP's metadata server answers instance/{name} with {response.status}")
        return response.body

    @property
    def _headers(self) -> Mapping[str, str]:
        return {"Metadata-Flavor": "Google"}


@dataclass
class Azure:
    """The instance metadata service of Azure, and its scheduled events."""

    url: str
    name: str = "Azure"
    _machine: str | None = None

    def is_here(self) -> bool:
        """Whether it knows this machine's name."""
        return self._own_name().status == 200

    def notice(self, now_s: float) -> Notice | None:
        """An event that takes this machine away; those of other machines of its scale set are told, too."""
        if self._machine is None and self._own_name().status != 200:
            raise OSError("Azure's metadata service does not name this machine")
        response = ask(
            f"{self.url}/metadata/scheduledevents?api-version=2020-07-01", self._headers, timeout_s=AZURE_TIMEOUT_S
        )
        events = _read_json(response, self.name).get("Events", [])
        ours = [e for e in events if e.get("EventType") in AZURE_EVENTS and self._machine in e.get("Resources", [])]
        notices = [Notice(f"Azure: {event['EventType']}", _not_before(event, now_s)) for event in ours]
        return min(notices, key=lambda notice: notice.at_s, default=None)

    def _own_name(self) -> Response:
        url = f"{self.url}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        response = ask(url, self._headers)
        if response.status == 200:
            self._machine = response.body
        return response

    @property
    def _headers(self) -> Mapping[str, str]:
        return {"Metadata": "true"}


CLOUDS: Mapping[str, type[Aws] | type[Gcp] | type[Azure]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def find_cloud(url: str) -> Cloud | None:
    """The cloud whose metadata service responds; None: none does."""
    for kind in CLOUDS.values():
        cloud: Cloud = kind(url)
        with contextlib.suppress(OSError):
            if cloud.is_here():
                return cloud
    return None


def _not_before(event: Mapping[str, str], now_s: float) -> float:
    try:
        return parsedate_to_datetime(event["NotBefore"]).timestamp()
    except (KeyError, TypeError, ValueError):
        # It has started.
        return now_s + AZURE_LEFT_S


def _read_json(response: Response, name: str) -> dict[str, Any]:
    """The object that a service responds with.

    Raises:
        OSError: it is none.
    """
    if response.status != 200:
        raise OSError(f"{name}'s metadata service answers with {response.status}")
    try:
        content = json.loads(response.body)
    except ValueError as error:
        raise OSError(f"{name}'s metadata service does not answer with JSON: {error}") from None
    if not isinstance(content, dict):
        raise OSError(f"{name}'s metadata service does not answer with a JSON object")
    return content
