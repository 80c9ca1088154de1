"""Reads JSON bodies as recipes are read: a key that stands twice is an error, where Python takes the last one."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from trainers.config.strict_loading import load_json


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return load_json(body.decode(json.detect_encoding(body)))
        except json.JSONDecodeError:
            raise  # FastAPI says where
        except UnicodeDecodeError:
            raise HTTPException(400, "the body is not text in UTF-8") from None
        except ValueError as error:
            raise HTTPException(422, f"the body is not JSON that can be used: {str(error)[:200]}") from None


class StrictJsonRoute(APIRoute):
    """A route of such bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly
