"""Azure, of which only preemption notices are supported."""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from cluster_configs.providers.provider import Notice, Provider, ask, read_json
from cluster_configs.validation.yaml_nodes import Node

# Azure enables its events on the first request, which may take two minutes.
AZURE_TIMEOUT_S = 130.0
# Seconds until the machine ends, if the notice has no time.
AZURE_LEFT_S = 30.0
HEADERS = {"Metadata": "true"}
AZURE_EVENTS = {"Preempt", "Terminate", "Reboot", "Redeploy"}


@dataclass
class Azure:
    """The instance metadata service of Azure, and its scheduled events.

    https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events; freezes, which last seconds, are ignored.
    """

    url: str
    name: str = "Azure"
    _machine: str | None = None

    def is_here(self) -> bool:
        """Returns True if the service knows this machine's name."""
        return self._own_name().status_code == 200

    def notice(self, now_s: float) -> Notice | None:
        """Returns the first event that ends or restarts this machine, if any; ignores those of other machines."""
        if self._machine is None and self._own_name().status_code != 200:
            raise OSError("Azure's metadata service does not name this machine")
        response = ask(
            f"{self.url}/metadata/scheduledevents?api-version=2020-07-01", HEADERS, timeout_s=AZURE_TIMEOUT_S
        )
        events = read_json(response, self.name).get("Events", [])
        ours = [e for e in events if e.get("EventType") in AZURE_EVENTS and self._machine in e.get("Resources", [])]
        notices = [Notice(f"Azure: {event['EventType']}", _not_before(event, now_s)) for event in ours]
        return min(notices, key=lambda notice: notice.at_s, default=None)

    def _own_name(self) -> httpx.Response:
        url = f"{self.url}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        response = ask(url, HEADERS)
        if response.status_code == 200:
            self._machine = response.text.strip()
        return response


def _not_before(event: Mapping[str, str], now_s: float) -> float:
    try:
        return parsedate_to_datetime(event["NotBefore"]).timestamp()
    except (KeyError, TypeError, ValueError):
        # An event that has started has no time.
        return now_s + AZURE_LEFT_S


def _spot_setting(config: Node) -> Node | None:
    priority = config.get("azure_arm_parameters", "priority")
    return priority if priority.text.lower() == "spot" else None


AZURE = Provider(
    spot_setting=_spot_setting,
    spot_labels={"kubernetes.azure.com/scalesetpriority": "spot"},
    metadata_service=Azure,
)
