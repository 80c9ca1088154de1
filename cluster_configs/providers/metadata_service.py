"""What a cloud says to a machine that it is about to take away, read from the machine's metadata service."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import httpx

METADATA_URL = "http://169.254.169.254"
TIMEOUT_S = 2.0


class Notice(NamedTuple):
    """That this machine is about to be taken away.

    Attributes:
        text: What the cloud says, for the log and for Ray.
        at_s: When it may be gone; seconds since 1970, UTC.
    """

    text: str
    at_s: float


def ask(url: str, headers: Mapping[str, str], *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> httpx.Response:
    """Asks a metadata service.

    Raises:
        OSError: nobody responds, or not as HTTP servers do.
    """
    try:
        # A proxy, which the environment may name, does not reach a link-local address.
        return httpx.request(method, url, headers=headers, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError as error:
        raise OSError(f"{url} does not answer: {error}") from error


class Cloud(Protocol):
    """A cloud's metadata service."""

    name: str

    def is_here(self) -> bool:
        """Whether this machine is one of this cloud's.

        Raises:
            OSError: nobody responds.
        """

    def notice(self, now_s: float) -> Notice | None:
        """What it says of this machine's end, `now_s` seconds since 1970 (UTC); None: nothing.

        Raises:
            OSError: nobody responds, or not as the protocol says.
        """


def read_json(response: httpx.Response, name: str) -> dict[str, Any]:
    """The object that a service responds with.

    Raises:
        OSError: it is none.
    """
    if response.status_code != 200:
        raise OSError(f"{name}'s metadata service answers with {response.status_code}")
    try:
        content = response.json()
    except ValueError as error:
        raise OSError(f"{name}'s metadata service does not answer with JSON: {error}") from None
    if not isinstance(content, dict):
        raise OSError(f"{name}'s metadata service does not answer with a JSON object")
    return content
