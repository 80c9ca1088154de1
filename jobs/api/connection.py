"""One service, asked over HTTP: timeouts, trying again while it is silent, and its errors as they were raised there."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
from pydantic import ValidationError

from jobs.addresses import is_loopback
from jobs.api.protocol import ErrorBody
from jobs.errors import AuthError, ServiceError
from trainers.errors import ConfigError

CONNECT_S = 5.0
# The service itself waits half a minute for a cluster, or for its database.
READ_S = 90.0
# A service that has answered before is waited for, over a restart. One that never did is probably not there.
PATIENCE_S = 60.0
FIRST_PATIENCE_S = 2.0
FIRST_DELAY_S, MOST_DELAY_S = 0.1, 5.0
# A proxy's words for a service that does not answer it just now, and our own for a database that does not answer us.
SILENT = (502, 503, 504)
# The request has not left this machine, so that sending it again cannot do anything twice.
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes:
        method: HTTP's.
        path: Below the service's URL.
        query: Names and values; None leaves one out.
        headers: Beside the token.
        json: Body.
        body: Begins the body anew for each try.
        read_s: How long the answer may take. None: as usual.
        repeatable: Whether doing it twice is doing it once.
        allowed: Statuses that are answers and not errors.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    body: Callable[[], Iterator[bytes]] | None = None
    read_s: float | None = None
    repeatable: bool = True
    allowed: Collection[int] = ()


class Connection:
    """Asks one service. Threads may share it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float = PATIENCE_S,
        read_s: float = READ_S,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Connects to nothing yet.

        Args:
            url: The service, e.g. http://127.0.0.1:8470.
            token: Who asks. None: nobody.
            patience_s: How long a service that has answered before is waited for.
            read_s: How long an answer may take.
            sleep: Waits between two tries. Seconds.

        Raises:
            ConfigError: the URL is none.
        """
        host = _parts_of(url).hostname or ""
        self.url = url.rstrip("/")
        self._patience_s, self._read_s, self._sleep = patience_s, read_s, sleep
        self._answered = False
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            # A proxy of the company does not know this machine's own loopback.
            trust_env=not is_loopback(host),
        )

    def close(self) -> None:
        """Lets go of all sockets."""
        self._http.close()

    def ask(self, call: Call) -> httpx.Response:
        """Asks, again while the service is silent and that does no harm.

        Raises:
            RayscribeError: what the service answered with.
            ServiceError: it did not answer, or is not a Rayscribe service.
        """
        end_s = time.monotonic() + (self._patience_s if self._answered else min(self._patience_s, FIRST_PATIENCE_S))
        delay_s = FIRST_DELAY_S
        while True:
            try:
                answer = self._http.send(self._request(call))
            except httpx.TransportError as error:
                trouble: Exception = self._silent(error)
                again = call.repeatable or isinstance(error, UNSENT)
            else:
                if answer.is_success or answer.status_code in call.allowed:
                    self._answered = True
                    return answer
                trouble = self._error_of(answer)
                again = call.repeatable and answer.status_code in SILENT and isinstance(trouble, ServiceError)
            if not again or time.monotonic() + delay_s > end_s:
                raise trouble
            self._sleep(delay_s)
            delay_s = min(2 * delay_s, MOST_DELAY_S)

    def stranger(self, what: str) -> ServiceError:
        """The error for an answer that is not one of ours."""
        return ServiceError(
            f"{self.url} does not answer as this version's Rayscribe service does ({what}): check the URL, what "
            "stands between, and that both versions are the same"
        )

    def _request(self, call: Call) -> httpx.Request:
        return self._http.build_request(
            call.method,
            call.path,
            params={name: value for name, value in call.query.items() if value is not None},
            headers=dict(call.headers),
            json=call.json,
            content=call.body() if call.body is not None else None,
            timeout=httpx.Timeout(call.read_s or self._read_s, connect=CONNECT_S),
        )

    def _silent(self, error: httpx.TransportError) -> ServiceError:
        said = str(error) or type(error).__name__
        return ServiceError(
            f"the service {self.url} does not answer ({said}): check the URL (--service, RAYSCRIBE_SERVICE) and that "
            "`rayscribe serve` runs there"
        )

    def _error_of(self, answer: httpx.Response) -> Exception:
        try:
            return ErrorBody.model_validate_json(answer.content).rebuilt()
        except ValidationError:
            pass
        if answer.status_code == 401:  # to a HEAD, which has no body
            return AuthError(
                f"{self.url} does not take the token: check RAYSCRIBE_TOKEN, RAYSCRIBE_TOKEN_FILE, or ask "
                "who runs the service for one"
            )
        return self.stranger(f"status {answer.status_code}")


def _parts_of(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.username is None:
            return parts
    except ValueError:
        pass
    raise ConfigError(f"the service's URL is {url!r}: write it as http://host:8470 (--service, RAYSCRIBE_SERVICE)")
