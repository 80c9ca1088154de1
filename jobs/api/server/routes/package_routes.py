"""/v1/packages: the working directories of runs, as zips by their SHA-256."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from jobs.api.protocol import PACKAGES
from jobs.api.server import openapi
from jobs.api.server.dependencies import Asked, Behind
from jobs.api.server.uploads import received
from jobs.errors import NotFoundError
from runtime_env.tree import LIMIT_BYTES

router = APIRouter(prefix=PACKAGES, tags=["packages"])

Sha256 = Annotated[
    str,
    Path(
        description="SHA-256 of the zip, in lower-case hexadecimal digits.",
        examples=[openapi.RUN_REQUEST["package"]],
        pattern=r"^[0-9a-f]{64}$",
    ),
]


@router.head(
    "/{sha256}",
    summary="Ask whether a package is here",
    response_class=Response,
    responses={200: {"description": "It is here."}, **openapi.errors(404, 422)},
)
def has_package(sha256: Sha256, asked: Asked) -> Response:
    """Answers 200 where the package need not be uploaded again, 404 where it must. Without a body, as HEAD is."""
    if not asked.has_package(sha256):
        raise NotFoundError(f"package {sha256} is not here: upload it first")
    return Response()


@router.put(
    "/{sha256}",
    status_code=204,
    summary="Upload a package",
    response_class=Response,
    responses={204: {"description": "It is here now."}, **openapi.errors(408, 413, 422)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_package(sha256: Sha256, request: Request, asked: Asked, behind: Behind) -> None:
    """Takes in a package: its bytes must have the SHA-256 of its name, and hold only what a package may.

    It streams to the service's disk. Uploading one that is here already changes nothing.
    """
    async with received(request, behind.uploads, most_bytes=LIMIT_BYTES) as upload:
        await run_in_threadpool(asked.put_package, sha256, upload)
