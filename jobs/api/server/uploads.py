"""Uploads over HTTP: streamed to a temporary file, with limits on size and idle time."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request

from jobs.api.protocol import TooLargeError, TooSlowError
from trainers.distributed.machine import make_private_folder

PREFIX = ".upload-"
# A client that sends nothing for this long is taken for disconnected.
IDLE_TIMEOUT_S = 60.0
# A client that sends a byte a minute would never end.
UPLOAD_TIMEOUT_S = 3600.0
# Left by a service that was killed; no upload takes a day.
STALE_S = 24 * 3600.0


@asynccontextmanager
async def receive_upload(
    request: Request, folder: Path, *, max_bytes: int, idle_timeout_s: float = IDLE_TIMEOUT_S
) -> AsyncIterator[Path]:
    """Receives a request's body in a file of a folder, which is made; it is removed at the end of the block.

    Raises:
        TooLargeError: the body is larger than `max_bytes`.
        TooSlowError: no data arrived for `idle_timeout_s`.
        ClientDisconnect: the client disconnected before the end.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    file = await run_in_threadpool(_open, folder)
    try:
        with file:
            try:
                async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                    await _copy(request, file, max_bytes, idle_timeout_s)
            except TimeoutError:
                raise TooSlowError(f"the upload was aborted after {UPLOAD_TIMEOUT_S:.0f} s; upload it again") from None
        yield Path(file.name)
    finally:
        await run_in_threadpool(Path(file.name).unlink, missing_ok=True)


def remove_stale_uploads(folder: Path) -> None:
    """Removes uploads left by services that were killed."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()
        except FileNotFoundError:  # another service has removed it
            continue


async def _copy(request: Request, file: IO[bytes], max_bytes: int, idle_timeout_s: float) -> None:
    chunks = request.stream().__aiter__()
    size = 0
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), idle_timeout_s)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise TooSlowError(f"the upload was aborted: no data for {idle_timeout_s:.0f} s; upload it again") from None
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        await run_in_threadpool(file.write, chunk)


def _too_large(max_bytes: int) -> TooLargeError:
    return TooLargeError(f"the package is larger than {max_bytes} bytes, the limit: see .rayignore")


def _open(folder: Path) -> IO[bytes]:
    make_private_folder(folder)
    return tempfile.NamedTemporaryFile(dir=folder, prefix=PREFIX, delete=False)
