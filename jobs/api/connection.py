"""HTTP calls to one service: timeouts, retries while it is unavailable, and its errors raised again here."""

import time
from collections.abc import Callable, Collection

import httpx
from pydantic import ValidationError

from jobs.addresses import is_http_url, is_loopback_url
from jobs.api.protocol import ErrorBody
from jobs.errors import AuthError, ServiceError
from trainers.config.storage_location import without_password
from trainers.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0
# The service itself waits up to half a minute for a cluster or its database.
READ_TIMEOUT_S = 90.0
# Calls are retried across a restart of the service. If it never responded, the URL is probably wrong.
RETRY_TIMEOUT_S = 60.0
FIRST_RETRY_TIMEOUT_S = 2.0
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 5.0
# From a proxy while the service is unavailable, and from the service while its database is.
UNAVAILABLE = (502, 503, 504)
# The request was not sent, so sending it again is safe.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Connection:
    """Calls one service; `http` builds the requests, with its URL and the token. Threads may share it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Opens no connection yet; calls are retried for `retry_timeout_s` if the service has responded before."""
        if not is_http_url(url):
            raise ConfigError(
                f"the service's URL is {without_password(url)!r}: write it as http://host:8470 (--service, "
                "RAYSCRIBE_SERVICE)"
            )
        self.url = url.rstrip("/")
        self._retry_timeout_s, self._sleep = retry_timeout_s, sleep
        self._has_responded = False
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S),
            # An HTTP proxy cannot reach this machine's loopback.
            trust_env=not is_loopback_url(url),
        )

    def send(self, request: httpx.Request, *, repeatable: bool = True, allowed: Collection[int] = ()) -> httpx.Response:
        """Sends a request, with retries while the service is unavailable and the request is repeatable.

        Statuses that are `allowed`, and 2xx, are no errors.

        Raises:
            RayscribeError: the error that the service responded with.
            ServiceError: it did not respond, or is not a Rayscribe service.
        """
        end_s = time.monotonic() + (
            self._retry_timeout_s if self._has_responded else min(self._retry_timeout_s, FIRST_RETRY_TIMEOUT_S)
        )
        delay_s = FIRST_DELAY_S
        while True:
            try:
                response = self.http.send(request)
            except httpx.TransportError as error:
                failure: Exception = self._unavailable(error)
                retry = repeatable or isinstance(error, NOT_SENT)
            else:
                if response.is_success or response.status_code in allowed:
                    self._has_responded = True
                    return response
                failure = self._error_of(response)
                retry = repeatable and response.status_code in UNAVAILABLE and isinstance(failure, ServiceError)
            if not retry or time.monotonic() + delay_s > end_s:
                raise failure
            self._sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    def unexpected_response(self, what: str) -> ServiceError:
        return ServiceError(
            f"{self.url} does not respond like a Rayscribe service of this version ({what}): check the URL, any "
            "proxy in between, and that both versions are the same"
        )

    def _unavailable(self, error: httpx.TransportError) -> ServiceError:
        cause = str(error) or type(error).__name__
        return ServiceError(
            f"the service {self.url} does not respond ({cause}): check the URL (--service, RAYSCRIBE_SERVICE) and that "
            "`rayscribe serve` runs there"
        )

    def _error_of(self, response: httpx.Response) -> Exception:
        try:
            return ErrorBody.model_validate_json(response.content).to_error()
        except ValidationError:
            pass
        if response.status_code == 401:  # to a HEAD request, which has no body
            return AuthError(
                f"{self.url} does not accept the token: check RAYSCRIBE_TOKEN and RAYSCRIBE_TOKEN_FILE, or ask the "
                "service's administrator for one"
            )
        return self.unexpected_response(f"status {response.status_code}")
