"""Files of web servers, which are read complete or in ranges."""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import httpx

from trainers.config.storage_location import without_password
from trainers.errors import StorageError
from trainers.storage.base import Entry
from trainers.storage.full_disk import naming_full_disk
from trainers.storage.retry import TRANSIENT_STATUSES, Explanation, RetryPolicy

T = TypeVar("T")

# Seconds: to connect, and without a byte.
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_CONNECTIONS = httpx.Limits(max_connections=32, max_keepalive_connections=32)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRY = RetryPolicy()
# Of a recording or a manifest, which are read at once.
MOST_BYTES = 2**31


class _NoRangeError(Exception):
    """A server gives a file complete where a range of it was asked for."""


class _TooLargeError(Exception):
    """A file has more than MOST_BYTES."""


class _CutError(Exception):
    """A response has other bytes than were asked for."""


def read_web_file(url: str, *, retry: RetryPolicy = _RETRY) -> bytes:
    """The content of a file.

    Raises:
        FileNotFoundError: there is none at the URL.
        StorageError: it cannot be read.
    """
    return _run(url, retry, lambda: _get(url))


def read_web_range(url: str, start: int, length: int, *, retry: RetryPolicy = _RETRY) -> bytes:
    """Bytes of a file from `start` on; fewer than `length` only at its end. Raises as `read_web_file`."""
    return _run(url, retry, lambda: _get_range(url, start, length)) if length else b""


def download_web_file(url: str, local: Path, *, retry: RetryPolicy = _RETRY) -> None:
    """Copies a file of any size to `local`, whose folder is there; it is complete, or raises as `read_web_file`."""

    def download() -> None:
        with _client().stream("GET", url) as response, naming_full_disk(), local.open("wb") as file:
            _refuse_error(response)
            # As they are stored, whatever encoding is said of them.
            for part in response.iter_raw():
                file.write(part)

    _run(url, retry, download)


def describe_web_file(url: str, *, retry: RetryPolicy = _RETRY) -> Entry:
    """Size of a file, and what its server marks its content by: its ETag, or when it was changed. Raises as above."""

    def read() -> Entry:
        with _client().stream("GET", url, headers={"Range": "bytes=0-0"}) as response:
            _refuse_error(response)
            given = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            size = given[3] if given is not None else response.headers.get("Content-Length", 0)
            mark = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        return Entry(without_password(url), int(size), 0.0, mark)

    return _run(url, retry, read)


@cache
def _client() -> httpx.Client:
    # Bytes as they are stored: a server's compression would change sizes and ranges.
    return httpx.Client(
        timeout=_TIMEOUT, limits=_CONNECTIONS, follow_redirects=True, headers={"Accept-Encoding": "identity"}
    )


# A forked process would read from its parent's connections what that one is sent.
os.register_at_fork(after_in_child=_client.cache_clear)


def _get(url: str) -> bytes:
    with _client().stream("GET", url) as response:
        _refuse_error(response)
        parts, left = [], MOST_BYTES
        for part in response.iter_bytes():
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise _TooLargeError
    return b"".join(parts)


def _get_range(url: str, start: int, length: int) -> bytes:
    with _client().stream("GET", url, headers={"Range": f"bytes={start}-{start + length - 1}"}) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return b""
        _refuse_error(response)
        given = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        # Of a server that sends all, nothing is read.
        if response.status_code != httpx.codes.PARTIAL_CONTENT or given is None:
            raise _NoRangeError
        wanted = min(length, int(given[3]) - start)
        if int(given[1]) != start or int(given[2]) - start + 1 != wanted:
            raise _CutError
        # As they are stored, whatever encoding is said of them.
        data = b"".join(response.iter_raw())
    if len(data) != wanted:
        raise _CutError
    return data


def _refuse_error(response: httpx.Response) -> None:
    if response.is_error:
        response.raise_for_status()


def _run(url: str, retry: RetryPolicy, call: Callable[[], T]) -> T:
    shown = without_password(url)
    try:
        return retry.run(call, action="read", url=shown, explain=_explain)
    except StorageError as error:
        status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
        if status in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
            raise FileNotFoundError(shown) from None
        raise


def _explain(error: BaseException) -> Explanation | None:
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        fix = "check the URL, and whether it needs a login" if status in (401, 403) else "check the URL, or try later"
        return Explanation(
            f"its server answers {status}", fix, transient=status in {*TRANSIENT_STATUSES, httpx.codes.TOO_EARLY}
        )
    if isinstance(error, _NoRangeError):
        return Explanation("its server sends no ranges of it", "download it, and name the file")
    if isinstance(error, _TooLargeError):
        return Explanation(f"it has more than {MOST_BYTES} bytes", "download it, and name the file")
    if isinstance(error, _CutError | httpx.TransportError):
        return Explanation(f"the connection failed ({error or 'cut off'})", "check the network", transient=True)
    if isinstance(error, httpx.InvalidURL | httpx.TooManyRedirects | httpx.DecodingError):
        return Explanation(str(error), "check the URL")
    return None
