"""What a cloud says to a machine that it is about to take away, read from the machine's metadata service."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol

METADATA_URL = "http://169.254.169.254"
TIMEOUT_S = 2.0
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


def read_json(response: Response, name: str) -> dict[str, Any]:
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
