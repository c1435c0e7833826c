"""Refusals in the format of OpenAI's API."""

from starlette.requests import Request
from starlette.responses import JSONResponse


class ApiError(Exception):
    """A refusal; `param` names the field of the request that caused it."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    @property
    def kind(self) -> str:
        """OpenAI's error type for the status."""
        if self.status >= 500:
            return "server_error"
        return {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


async def render_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's exception handler."""
    assert isinstance(error, ApiError)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.status == 503:
        headers["Retry-After"] = "2"
    return JSONResponse(error.body(), error.status, headers=headers)
