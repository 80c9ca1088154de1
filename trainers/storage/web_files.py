"""Reads files on web servers completely or in ranges, and downloads them with resumption."""

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import httpx

from trainers.config.storage_location import without_password
from trainers.errors import ConfigError, NoAccessError, StorageError
from trainers.storage.base import Entry
from trainers.storage.full_disk import naming_full_disk, refuse_full
from trainers.storage.retry import TRANSIENT_STATUSES, Explanation, RetryPolicy

T = TypeVar("T")

# Seconds without a byte received, and seconds to connect.
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_CONNECTIONS = httpx.Limits(max_connections=32, max_keepalive_connections=32)
_MAX_REDIRECTS = 10
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRY = RetryPolicy()
# Maximum size of a recording or a manifest, which are read at once.
MOST_BYTES = 2**31


class _ResponseError(Exception):
    """A response that does not match the request, or cannot be trusted."""

    def __init__(self, explanation: Explanation):
        super().__init__(explanation.cause)
        self.explanation = explanation


_BY_HAND = "download it, and give the path of the file"
_NO_RANGE = Explanation("its server does not support range requests", _BY_HAND)
_TOO_LARGE = Explanation(f"it has more than {MOST_BYTES} bytes", _BY_HAND)
_NO_LENGTH = Explanation(
    "its server does not send its length, so a truncated download would not be noticed",
    f"{_BY_HAND}; or for a model, append #sha256=<64 hex digits> to the URL",
    kind=NoAccessError,
)
_CUT = Explanation("the connection failed (other bytes than requested)", "check the network", transient=True)


@dataclass(frozen=True)
class WebVersion:
    """A server's description of a file's content; "" for missing values, None for a missing size."""

    etag: str
    modified: str
    size_bytes: int | None

    @classmethod
    def of(cls, response: httpx.Response) -> "WebVersion":
        part, length = _range_of(response), response.headers.get("Content-Length")
        size = part[2] if part is not None else int(length) if length is not None else None
        return cls(response.headers.get("ETag", ""), response.headers.get("Last-Modified", ""), size)

    @property
    def mark(self) -> str:
        """An identifier that changes with the content."""
        return self.etag or self.modified

    @property
    def validator(self) -> str:
        """The validator for requesting the rest of the same content; a weak ETag is not valid for this."""
        return self.modified if self.etag.startswith("W/") else self.mark


def read_web_file(url: str) -> bytes:
    """Returns the content of a file.

    Raises:
        FileNotFoundError: there is no file at the URL.
        NoAccessError: the server refuses access.
        StorageError: the file cannot be read.
    """
    return _run(url, lambda: _get(url))


def read_web_range(url: str, start: int, length: int) -> bytes:
    """Returns `length` bytes of a file from `start` on, or fewer at its end. Raises as `read_web_file`."""
    return _run(url, lambda: _get_range(url, start, length)) if length else b""


def describe_web_file(url: str) -> Entry:
    """Returns a file's size, and its ETag or modification time as `etag`. Raises as `read_web_file`."""

    def read() -> Entry:
        with _client().stream("GET", url, headers={"Range": "bytes=0-0"}) as response:
            response.raise_for_status()
            version = WebVersion.of(response)
        return Entry(without_password(url), version.size_bytes or 0, 0.0, version.mark)

    return _run(url, read)


def download_web_file(
    url: str,
    target: Path,
    *,
    name: str | None = None,
    tls_only: bool = False,
    hashed: bool = False,
    known: WebVersion | None = None,
) -> WebVersion | None:
    """Downloads a file to an existing folder, where it exists only when complete; an interrupted download is resumed.

    Args:
        url: Its URL.
        target: Path of the new file.
        name: Name in messages; None for the URL without its password.
        tls_only: True to refuse redirects to URLs other than https.
        hashed: True if a hash of the content is checked later, so that the server need not send its length.
        known: Version of an earlier download; nothing is downloaded if the server certainly still has it.

    Returns:
        The file's version; None if that is `known`.

    Raises:
        ConfigError: a redirect is not to an https URL.
        FullDiskError: the disk has no room for the file.
        FileNotFoundError, NoAccessError, StorageError: as `read_web_file`.
    """
    part, versions = target.with_name(f".{target.name}.part"), list[WebVersion]()
    part.unlink(missing_ok=True)
    shown = name or without_password(url)

    def attempt() -> bool:
        with _new_client(_refuse_plain) if tls_only else nullcontext(_client()) as client:
            return _download(client, url, part, versions, known, shown, hashed=hashed)

    if _run(url, attempt, action="download", name=shown):
        return None
    part.replace(target)
    return versions[-1]


def _download(
    client: httpx.Client,
    url: str,
    part: Path,
    versions: list[WebVersion],
    known: WebVersion | None,
    name: str,
    *,
    hashed: bool,
) -> bool:
    """Downloads the rest of `part`, and appends its version to `versions`; returns True if the file is `known`."""
    before = versions[-1] if versions and part.exists() else None
    done = part.stat().st_size if before is not None and before.validator else 0
    headers = {"Range": f"bytes={done}-", "If-Range": before.validator} if before is not None and done else {}
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            raise _ResponseError(_CUT)
        response.raise_for_status()
        version, given = WebVersion.of(response), _range_of(response)
        if given is None or response.status_code != httpx.codes.PARTIAL_CONTENT:
            done = 0
        elif before is None or given[0] != done or version.size_bytes != before.size_bytes:
            part.unlink(missing_ok=True)
            raise _ResponseError(_CUT)
        if not done and version == known and version.validator:
            return True
        if not hashed:
            _refuse_without_length(response)
        versions.append(version)
        refuse_full(part.parent, (version.size_bytes or 0) - done, name)
        with naming_full_disk(), part.open("ab" if done else "wb") as file:
            # Raw bytes as stored, whatever their declared encoding.
            for block in response.iter_raw():
                file.write(block)
    if version.size_bytes is not None and part.stat().st_size != version.size_bytes:
        raise _ResponseError(_CUT)
    return False


def _new_client(on_request: Callable[[httpx.Request], None] | None = None) -> httpx.Client:
    return httpx.Client(
        timeout=_TIMEOUT,
        limits=_CONNECTIONS,
        follow_redirects=True,
        max_redirects=_MAX_REDIRECTS,
        # Requests bytes as stored, since compression by the server would change sizes and ranges.
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [on_request] if on_request is not None else []},
    )


@cache
def _client() -> httpx.Client:
    return _new_client()


# Otherwise a forked process would read responses to its parent from shared connections.
os.register_at_fork(after_in_child=_client.cache_clear)


def _refuse_plain(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise ConfigError(
            f"{request.url.host}: the download is redirected to it over {request.url.scheme}: use another URL"
        )


def _get(url: str) -> bytes:
    with _client().stream("GET", url) as response:
        response.raise_for_status()
        _refuse_without_length(response)
        parts, left = [], MOST_BYTES
        for part in response.iter_bytes():
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise _ResponseError(_TOO_LARGE)
    return b"".join(parts)


def _get_range(url: str, start: int, length: int) -> bytes:
    with _client().stream("GET", url, headers={"Range": f"bytes={start}-{start + length - 1}"}) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return b""
        response.raise_for_status()
        given = _range_of(response)
        # If the server sends the complete file, nothing of it is read.
        if response.status_code != httpx.codes.PARTIAL_CONTENT or given is None:
            raise _ResponseError(_NO_RANGE)
        first, last, size = given
        wanted = min(length, size - start)
        if first != start or last - start + 1 != wanted:
            raise _ResponseError(_CUT)
        # Raw bytes as stored, whatever their declared encoding.
        data = b"".join(response.iter_raw())
    if len(data) != wanted:
        raise _ResponseError(_CUT)
    return data


def _refuse_without_length(response: httpx.Response) -> None:
    if "Content-Length" not in response.headers and "chunked" not in response.headers.get("Transfer-Encoding", ""):
        raise _ResponseError(_NO_LENGTH)


def _range_of(response: httpx.Response) -> tuple[int, int, int] | None:
    """Returns the first and last position of a response's bytes, and the file's size; None without these headers."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2]), int(found[3])) if found is not None else None


def _run(url: str, call: Callable[[], T], *, action: str = "read", name: str | None = None) -> T:
    shown = name or without_password(url)
    try:
        return _RETRY.run(call, action=action, url=shown, explain=_explain)
    except StorageError as error:
        status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
        if status in (httpx.codes.NOT_FOUND, httpx.codes.GONE):
            raise FileNotFoundError(shown) from None
        raise


def _explain(error: BaseException) -> Explanation | None:
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        transient = status in {*TRANSIENT_STATUSES, httpx.codes.TOO_EARLY}
        kind = NoAccessError if error.response.is_client_error and not transient else StorageError
        fix = "check the URL, and whether it needs a login" if status in (401, 403) else "check the URL, or try later"
        return Explanation(f"its server responds with status {status}", fix, transient=transient, kind=kind)
    if isinstance(error, _ResponseError):
        return error.explanation
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Explanation(str(error), "set SSL_CERT_FILE to the certificate of the authority that signed the server's")
    if isinstance(error, httpx.TransportError):
        return Explanation(f"the connection failed ({error or 'closed early'})", "check the network", transient=True)
    if isinstance(error, httpx.InvalidURL | httpx.TooManyRedirects | httpx.DecodingError):
        return Explanation(str(error), "check the URL")
    return None
