"""Small pieces shared by the routes: JSON in and out, errors in SGLang's form."""

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gpu_workers.engines.embedded.request import RequestError

T = TypeVar("T")


class Json(Response):
    """A JSON response through msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def error_response(message: str, status: int = 400) -> Json:
    """{"error": {"message": …}} as SGLang answers."""
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    return Json({"error": {"message": message, "type": kind, "code": status}}, status_code=status)


async def read_body(http: HttpRequest, kind: type[T]) -> T:
    """The body as a struct; an empty body has all defaults. Raises RequestError naming the field."""
    try:
        return msgspec.json.decode(await http.body() or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(f"body: {error}") from error
