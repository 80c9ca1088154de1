"""A client of the HTTP API, with the same methods, records and errors as the service itself."""

import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from jobs.addresses import host_of, is_http_url, is_loopback, is_loopback_url
from jobs.api.protocol import CLUSTERS, HEALTH, IDEMPOTENCY_KEY, PACKAGES, QUEUES, RUNS, USAGE, ErrorBody
from jobs.errors import AuthError, NotFoundError, ServiceError
from jobs.model import ALL_RUNS, Attempt, Event, LogPage, Page, Run, RunFilter, Usage, UsageBy
from jobs.paths import hosts_of_token
from jobs.submission.run_request import RunRequest
from trainers.config.storage_location import in_home, without_password
from trainers.distributed.machine import home
from trainers.errors import ConfigError

Result = TypeVar("Result")
# Parses responses of a type. Cached, since creating the adapter takes longer than parsing a response.
_adapter_of: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)

CONNECT_TIMEOUT_S = 5.0
# The service checks every byte of a package before it responds.
UPLOAD_TIMEOUT = httpx.Timeout(300.0, connect=CONNECT_TIMEOUT_S)
CHUNK_BYTES = 1 << 20
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


class Client:
    """An HTTP client of the service. Calls that are safe to repeat are retried while the service restarts.

    Every method raises ServiceError if the service does not respond, and AuthError if it does not accept the token.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Opens no connection yet. Without a `token`, uses the one of `find_token`.

        Calls are retried for `retry_timeout_s` if the service has responded before. Threads may share a client.

        Raises:
            ConfigError: the URL is not valid.
        """
        token = token if token is not None else find_token(url)
        if not is_http_url(url):
            raise ConfigError(
                f"the service's URL is {without_password(url)!r}: write it as http://host:8470 (--service, "
                "RAYSCRIBE_SERVICE)"
            )
        self._url = url.rstrip("/")
        self._retry_timeout_s, self._sleep = retry_timeout_s, sleep
        self._has_responded = False
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S),
            # An HTTP proxy cannot connect to this machine's loopback.
            trust_env=not is_loopback_url(url),
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def clusters(self) -> list[str]:
        return self._get(dict[str, list[str]], CLUSTERS)["clusters"]

    def has_package(self, sha256: str) -> bool:
        request = self._http.build_request("HEAD", _package_path(sha256))
        return self._send(request, allowed=(404,)).status_code == 200

    def put_package(self, sha256: str, path: Path) -> None:
        headers = {"Content-Length": str(path.stat().st_size), "Content-Type": "application/octet-stream"}
        build = self._http.build_request
        self._send(build("PUT", _package_path(sha256), headers=headers, content=_Chunks(path), timeout=UPLOAD_TIMEOUT))

    def submit(self, run_request: RunRequest, *, idempotency_key: str | None = None) -> Run:
        """Queues one run, even if the connection is lost and the request is retried; see `Service.submit`."""
        headers = {IDEMPOTENCY_KEY: idempotency_key if idempotency_key is not None else uuid.uuid4().hex}
        try:
            request = self._http.build_request("POST", RUNS, headers=headers, json=run_request.model_dump())
        except ValueError:
            raise ConfigError(
                "the recipe or an override has a number that is not finite, or a text that is not UTF-8: fix it"
            ) from None
        return self._call(Run, request)

    def runs(self, wanted: RunFilter = ALL_RUNS, *, limit: int = 50, cursor: str | None = None) -> Page:
        states = [state.value for state in wanted.states]
        filters = {"queue": wanted.queue, "user": wanted.user, "tag": wanted.tag, "state": states}
        return self._get(Page, RUNS, **filters, limit=limit, cursor=cursor)

    def run(self, run_id: str) -> Run:
        return self._get(Run, _run_path(run_id))

    def attempts(self, run_id: str) -> list[Attempt]:
        return self._get(list[Attempt], _run_path(run_id, "attempts"))

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._get(list[Event], _run_path(run_id, "events"), after=after, limit=limit)

    def stop(self, run_id: str) -> Run:
        return self._call(Run, self._http.build_request("POST", _run_path(run_id, "stop")))

    def resume(self, run_id: str) -> Run:
        # Not retried once it was sent: if the first request had arrived, the second would be rejected.
        return self._call(Run, self._http.build_request("POST", _run_path(run_id, "resume")), repeatable=False)

    def logs(
        self, run_id: str, *, attempt: int | None = None, source: str | None = None, cursor: str | None = None
    ) -> LogPage:
        return self._get(LogPage, _run_path(run_id, "logs"), attempt=attempt, source=source, cursor=cursor)

    def usage(self, by: UsageBy, *, since_s: float | None = None, run_id: str | None = None) -> list[Usage]:
        return self._get(list[Usage], USAGE, by=by, since_s=since_s, run_id=run_id)

    def queues(self) -> dict[str, Any]:
        """Returns the service's queues, with their limits and numbers of runs; see `GET /v1/queues`."""
        return self._get(dict[str, Any], QUEUES)

    def health(self) -> dict[str, Any]:
        """Returns the health of the service: `status`, `holds_lease`, `version`."""
        return self._get(dict[str, Any], HEALTH)

    def _get(self, shape: type[Result], path: str, **query: Any) -> Result:
        """Sends a GET request; query parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._call(shape, self._http.build_request("GET", path, params=given))

    def _call(self, shape: type[Result], request: httpx.Request, *, repeatable: bool = True) -> Result:
        response = self._send(request, repeatable=repeatable)
        try:
            result: Result = _adapter_of(shape).validate_json(response.content)
            return result
        except ValidationError as error:
            raise self._unexpected_response(f"{error.error_count()} fields are not as expected") from None

    def _send(
        self, request: httpx.Request, *, repeatable: bool = True, allowed: Collection[int] = ()
    ) -> httpx.Response:
        """Sends a request; retries it while the service is unavailable if the request is repeatable.

        Statuses in `allowed`, and 2xx, are not errors.

        Raises:
            RayscribeError: the error with which the service responded.
            ServiceError: the service did not respond, or is not a Rayscribe service.
        """
        end_s = time.monotonic() + (
            self._retry_timeout_s if self._has_responded else min(self._retry_timeout_s, FIRST_RETRY_TIMEOUT_S)
        )
        delay_s = FIRST_DELAY_S
        while True:
            try:
                response = self._http.send(request)
            except httpx.TransportError as error:
                failure: Exception = ServiceError(
                    f"the service {self._url} does not respond ({str(error) or type(error).__name__}): check the URL "
                    "(--service, RAYSCRIBE_SERVICE) and that `rayscribe serve` runs there"
                )
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

    def _unexpected_response(self, what: str) -> ServiceError:
        return ServiceError(
            f"{self._url} does not respond like a Rayscribe service of this version ({what}): check the URL, any "
            "proxy in between, and that both versions are the same"
        )

    def _error_of(self, response: httpx.Response) -> Exception:
        try:
            return ErrorBody.model_validate_json(response.content).to_error()
        except ValidationError:
            pass
        if response.status_code == 401:  # to a HEAD request, which has no body
            return AuthError(
                f"{self._url} does not accept the token: check RAYSCRIBE_TOKEN and RAYSCRIBE_TOKEN_FILE, or ask the "
                "service's administrator for one"
            )
        return self._unexpected_response(f"status {response.status_code}")


def find_token(url: str) -> str | None:
    """Returns this user's token: RAYSCRIBE_TOKEN, the file that RAYSCRIBE_TOKEN_FILE names, or `token` in `home()`.

    The token is sent only to the host of its service, if that is known: the host of RAYSCRIBE_SERVICE, or for the
    token that a service has written to `home()`, the machine on which that service runs. Returns None if there is no
    token; a service that runs with `--no-auth` needs none.

    Raises:
        ConfigError: the file cannot be read or does not have a token, or the token is another service's.
    """
    token = _found_token()
    usual, host = os.environ.get("RAYSCRIBE_SERVICE", ""), host_of(url)
    if token is None or not host:
        return token
    if usual and host_of(usual) != host:
        raise ConfigError(
            f"--service {without_password(url)}: your token is for RAYSCRIBE_SERVICE, {without_password(usual)}, and "
            "is sent to no other host: set RAYSCRIBE_SERVICE and RAYSCRIBE_TOKEN to those of one service"
        )
    path = home() / "token"
    named = any(os.environ.get(name) for name in ("RAYSCRIBE_TOKEN", "RAYSCRIBE_TOKEN_FILE"))
    known = [] if named else hosts_of_token(path)
    if known and host not in known and not is_loopback(host):
        raise ConfigError(
            f"--service {without_password(url)}: the token in {path} is for the service on {known[0]}, and is sent to "
            "no other host: set RAYSCRIBE_TOKEN, or RAYSCRIBE_TOKEN_FILE, to the token of this one"
        )
    return token


def _found_token() -> str | None:
    token = os.environ.get("RAYSCRIBE_TOKEN", "").strip()
    if token:
        return _validated(token, "RAYSCRIBE_TOKEN")
    named = os.environ.get("RAYSCRIBE_TOKEN_FILE")
    path = in_home(named) if named else home() / "token"
    try:
        return _validated(path.read_text(encoding="utf-8").strip(), str(path))
    except FileNotFoundError:
        if named is None:
            return None
        raise ConfigError(f"RAYSCRIBE_TOKEN_FILE: {path} was not found: name the file with your token") from None
    except OSError as error:
        raise ConfigError(f"{path}: the token in it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} does not have a token: it is not text") from None


def _validated(token: str, where: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{where} does not have a token: a token is a single word that begins with rsk_")
    return token


def _run_path(run_id: str, *more: str) -> str:
    if not run_id or run_id in (".", "..") or "/" in run_id:  # would be another path
        raise NotFoundError(f"no run is named {run_id!r}: `rayscribe list` shows all")
    return "/".join([RUNS, quote(run_id, safe=""), *more])


def _package_path(sha256: str) -> str:
    if re.fullmatch(r"[0-9a-f]{64}", sha256) is None:  # the response to a HEAD request has no message
        raise ConfigError(f"package {sha256[:80]!r} is not a SHA-256: 64 hexadecimal digits")
    return f"{PACKAGES}/{sha256}"


class _Chunks:
    """A file as the body of a request; each retry reads it from the start."""

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
