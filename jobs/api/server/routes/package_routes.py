"""/v1/packages: the working directories of runs, as zips by their SHA-256."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from jobs.api.protocol import PACKAGES
from jobs.api.server import openapi
from jobs.api.server.dependencies import BackendDep, ServiceDep
from jobs.api.server.uploads import receive_upload
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
    summary="Check whether a package exists",
    response_class=Response,
    responses={200: {"description": "The package exists."}, **openapi.errors(404, 422)},
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
    responses={204: {"description": "The package is stored."}, **openapi.errors(408, 413, 422, 507)},
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
