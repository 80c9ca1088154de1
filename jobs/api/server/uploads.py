"""A file that comes in over HTTP: streamed to disk, bounded in size and in silence, gone again whatever happens."""

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

PREFIX = ".upload-"
# A client that sends nothing for so long has gone.
SILENCE_S = 60.0
# Left by a service that was killed: no upload takes a day.
STALE_S = 24 * 3600.0


@asynccontextmanager
async def received(
    request: Request, folder: Path, *, most_bytes: int, silence_s: float = SILENCE_S
) -> AsyncIterator[Path]:
    """Receives a request's body into a file that lives as long as the block.

    Args:
        request: The request; nothing of its body was read.
        folder: Where the file goes; made where it is missing.
        most_bytes: The most that is taken.
        silence_s: Given up when nothing comes for so long.

    Raises:
        TooLargeError: the body is larger.
        TooSlowError: nothing came for so long.
        ClientDisconnect: the client has gone before the end.
    """
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most_bytes:
        raise _too_large(most_bytes)
    file = await run_in_threadpool(_open, folder)
    try:
        with file:
            await _copy(request, file, most_bytes, silence_s)
        yield Path(file.name)
    finally:
        await run_in_threadpool(Path(file.name).unlink, missing_ok=True)


def remove_stale(folder: Path) -> None:
    """Removes what services left that were killed in the middle of an upload."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink()
        except FileNotFoundError:  # another service was quicker
            continue


async def _copy(request: Request, file: IO[bytes], most_bytes: int, silence_s: float) -> None:
    chunks = request.stream().__aiter__()
    size = 0
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), silence_s)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise TooSlowError(f"the upload stopped: nothing came for {silence_s:.0f} s; upload it again") from None
        size += len(chunk)
        if size > most_bytes:
            raise _too_large(most_bytes)
        await run_in_threadpool(file.write, chunk)


def _too_large(most_bytes: int) -> TooLargeError:
    return TooLargeError(f"the package is larger than {most_bytes} bytes, the most that is taken: see .rayignore")


def _open(folder: Path) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return tempfile.NamedTemporaryFile(dir=folder, prefix=PREFIX, delete=False)
