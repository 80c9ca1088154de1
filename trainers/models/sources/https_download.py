"""Models at https:// URLs: which content a file has, by its SHA-256; downloaded over TLS alone."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trainers.errors import ConfigError
from trainers.storage import sha256_of
from trainers.storage.web_files import WebVersion, download_web_file


@dataclass(frozen=True)
class KnownDownload:
    """A file that was downloaded from a URL before: what the server said of it, and its SHA-256."""

    version: WebVersion
    sha256: str

    @classmethod
    def read(cls, file: Path) -> "KnownDownload | None":
        try:
            content = json.loads(file.read_bytes())
            return cls(WebVersion(**content["version"]), str(content["sha256"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, file: Path) -> None:
        part = file.with_name(f".{file.name}.part")
        part.write_text(json.dumps(asdict(self)))
        part.replace(file)


def download(
    url: str, target: Path, origin: str, *, sha256: str | None, known: KnownDownload | None = None
) -> KnownDownload | None:
    """Downloads a file, see `download_web_file`.

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
    before = known.version if known is not None else None
    try:
        version = download_web_file(url, target, name=origin, tls_only=True, hashed=sha256 is not None, known=before)
    except FileNotFoundError:
        raise ConfigError(f"{origin}: no file is there: check the URL") from None
    if version is None:
        return None
    found = sha256_of(target)
    if sha256 not in (None, found):
        target.unlink()
        raise ConfigError(
            f"{origin}: its SHA-256 is {found}, and #sha256={sha256} is asked for: another file is there; correct the "
            "hash if you trust it"
        )
    return KnownDownload(version, found)
