"""Files at https:// URLs: complete or not there; a download that was cut goes on; every redirect is TLS, too."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from trainers.config.parts.model_source import HTTPS
from trainers.errors import ConfigError
from trainers.models.sources.archives import refuse_full
from trainers.storage import RetryPolicy, sha256_of
from trainers.storage.full_disk import naming_full_disk
from trainers.storage.retry import TRANSIENT_STATUSES, Explanation

RETRIES = RetryPolicy()
TIMEOUT = httpx.Timeout(30.0)
MAX_REDIRECTS = 10
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_FIX = "try again later, or copy the file to a folder or a bucket that all nodes read, and name that"


@dataclass(frozen=True)
class Version:
    """What a server says of a file's content; the ETag is "" where it gives none, or only a weak one."""

    etag: str
    modified: str
    size_bytes: int | None

    @classmethod
    def of(cls, response: httpx.Response) -> "Version":
        etag, length = response.headers.get("etag", ""), response.headers.get("content-length")
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is not None:
            length = found[2] if found[2] != "*" else None
        strong = etag if not etag.startswith("W/") else ""
        return cls(strong, response.headers.get("last-modified", ""), int(length) if length is not None else None)

    @property
    def validator(self) -> str:
        """What asks for the rest of the same content; "" where the server gives nothing to ask by."""
        return self.etag or self.modified

    def same_as(self, other: "Version") -> bool:
        """Whether two responses are surely of the same content."""
        return bool(self.validator) and self == other


@dataclass(frozen=True)
class KnownDownload:
    """A file that was downloaded from a URL before: what the server said of it, and its SHA-256."""

    version: Version
    sha256: str

    @classmethod
    def read(cls, file: Path) -> "KnownDownload | None":
        try:
            content = json.loads(file.read_bytes())
            return cls(Version(**content["version"]), str(content["sha256"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, file: Path) -> None:
        part = file.with_name(f".{file.name}.part")
        part.write_text(json.dumps(asdict(self)))
        part.replace(file)


class _CutError(Exception):
    """A response that ended early, or is not what was asked for."""


def download(
    url: str, target: Path, origin: str, *, sha256: str | None, known: KnownDownload | None = None
) -> KnownDownload | None:
    """Downloads a file, in as many parts as it takes; `target` is only there when it is complete.

    Args:
        url: Of https.
        target: Is made; its folder is there.
        origin: What messages name, since the URL may hold a secret.
        sha256: Of the file. None: what the server says of its length has to do.
        known: Of an earlier download: where the server still has the same, nothing is downloaded.

    Returns:
        What was downloaded; None where it is what is known.

    Raises:
        ConfigError: there is no such file, it is not served over TLS, or it has another SHA-256.
        StorageError: the server or the network does not respond, or the disk has no room for it.
    """
    part, versions = target.with_name(f".{target.name}.part"), list[Version]()
    part.unlink(missing_ok=True)

    def attempt() -> bool:
        return _attempt(url, part, versions, known, origin, is_hashed=sha256 is not None)

    if RETRIES.run(attempt, action="download", url=origin, explain=_explain):
        return None
    found = sha256_of(part)
    if sha256 is not None and found != sha256:
        part.unlink()
        raise ConfigError(
            f"{origin}: its SHA-256 is {found}, and #sha256={sha256} is asked for: another file is there; correct the "
            "hash if you trust it"
        )
    part.replace(target)
    return KnownDownload(versions[-1], found)


def _attempt(
    url: str, part: Path, versions: list[Version], known: KnownDownload | None, origin: str, *, is_hashed: bool
) -> bool:
    """Downloads what is missing; gives whether it is what is known. `versions` has that of the part that is there."""
    done = part.stat().st_size if part.exists() and versions and versions[-1].validator else 0
    headers = {"Accept-Encoding": "identity"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": versions[-1].validator}
    with _client() as client, client.stream("GET", url, headers=headers) as response:
        _refuse_status(response, part, origin)
        version, done = Version.of(response), done if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
        if done and (_start(response) != done or version.size_bytes != versions[-1].size_bytes):
            part.unlink()
            raise _CutError("the server sent another part than was asked for")
        if known is not None and not done and version.same_as(known.version):
            return True
        if (
            version.size_bytes is None
            and not is_hashed
            and "chunked" not in response.headers.get("transfer-encoding", "")
        ):
            raise ConfigError(
                f"{origin}: the server does not say how long the file is, so that a cut one could be taken for whole: "
                "write #sha256=<64 hex digits> behind the URL"
            )
        versions.append(version)
        refuse_full(part.parent, (version.size_bytes or 0) - done, origin)
        with naming_full_disk(), part.open("ab" if done else "wb") as file:
            for block in response.iter_raw():
                file.write(block)
    if version.size_bytes is not None and (size := part.stat().st_size) != version.size_bytes:
        raise _CutError(f"{size} of {version.size_bytes} bytes came")
    return False


def _start(response: httpx.Response) -> int | None:
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    return int(found[1]) if found is not None else None


@contextmanager
def _client() -> Iterator[httpx.Client]:
    with httpx.Client(
        timeout=TIMEOUT, follow_redirects=True, max_redirects=MAX_REDIRECTS, event_hooks={"request": [_refuse_plain]}
    ) as client:
        yield client


def _refuse_plain(request: httpx.Request) -> None:
    """Refuses a redirect to a URL that is not of https, before it is followed."""
    if request.url.scheme != HTTPS.removesuffix("://"):
        raise ConfigError(
            f"{request.url.host}: is redirected to over {request.url.scheme}, and not {HTTPS}: name another"
        )


def _refuse_status(response: httpx.Response, part: Path, origin: str) -> None:
    status = response.status_code
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        part.unlink()
        raise _CutError("the server has no such part as was asked for")
    if status in TRANSIENT_STATUSES:
        raise _CutError(f"the server responds with status {status}")
    if not response.is_success:
        raise ConfigError(
            f"{origin}: the server responds with status {status}: check the URL, and whether it may be read without a "
            "login"
        )


def _explain(error: BaseException) -> Explanation | None:
    if isinstance(error, httpx.HTTPError | _CutError):
        is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
        fix = "set SSL_CERT_FILE to the certificates of who signed the server's" if is_untrusted else _FIX
        transient = isinstance(error, httpx.TransportError | _CutError) and not is_untrusted
        return Explanation(str(error) or type(error).__name__, fix, transient=transient)
    return None
