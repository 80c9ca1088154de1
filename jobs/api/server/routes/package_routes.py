"""/v1/packages: the working directories of runs, as zips by their SHA-256.

Uploads are streamed to a temporary file, with limits on size and idle time.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Annotated

import fastapi
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from jobs.api.protocol import PACKAGES, TooLargeError, TooSlowError
from jobs.api.server.dependencies import BackendDep, ServiceDep
from jobs.api.server.routes.run_routes import RUN_REQUEST
from jobs.errors import NotFoundError
from runtime_env.package import LIMIT_BYTES
from trainers.distributed.machine import make_private_folder

router = APIRouter(prefix=PACKAGES, tags=["packages"])

Sha256 = Annotated[
    str,
    fastapi.Path(
        description="SHA-256 of the zip, in lower-case hexadecimal digits.",
        examples=[RUN_REQUEST["package"]],
        pattern=r"^[0-9a-f]{64}$",
    ),
]
PREFIX = ".upload-"
# A client that sends nothing for this long is considered disconnected.
IDLE_TIMEOUT_S = 60.0
# Without this limit, a client that sends a byte per minute would never end.
UPLOAD_TIMEOUT_S = 3600.0
# Age at which uploads are removed, as left by a killed service; no upload takes a day. Seconds.
STALE_S = 24 * 3600.0


@router.head(
    "/{sha256}",
    summary="Check whether a package exists",
    response_class=Response,
    response_description="The package exists.",
)
def has_package(sha256: Sha256, service: ServiceDep) -> Response:
    """Responds with 200 if the service has the package, and with 404 if it has to be uploaded."""
    if not service.has_package(sha256):
        raise NotFoundError(f"package {sha256} was not found: upload it first")
    return Response()


@router.put(
    "/{sha256}",
    status_code=204,
    summary="Upload a package",
    response_class=Response,
    response_description="The package is stored.",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_package(sha256: Sha256, request: Request, service: ServiceDep, backend: BackendDep) -> None:
    """Stores a package. The body must have the SHA-256 of the path, and must be a valid package.

    The body may be streamed. Uploading a package again changes nothing.
    """
    async with receive_upload(request, backend.uploads, max_bytes=LIMIT_BYTES) as upload:
        await run_in_threadpool(service.put_package, sha256, upload)


@asynccontextmanager
async def receive_upload(
    request: Request, folder: Path, *, max_bytes: int, idle_timeout_s: float = IDLE_TIMEOUT_S
) -> AsyncIterator[Path]:
    """Receives a request's body in a new file of a folder, which is created if missing; removes it after the block.

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
