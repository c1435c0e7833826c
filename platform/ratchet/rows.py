"""Part of a list that is computed and not a table's: `?offset=&limit=`, read the same everywhere."""

from rest_framework.request import Request

from ratchet.problems import Problem

MAX_ROWS = 200


def read_part(request: Request, limit: int = 50) -> tuple[int, int]:
    """Offset and limit of a request. Raises Problem 400 naming the parameter that is no such number."""
    return _number(request, "offset", 0, None), _number(request, "limit", limit, MAX_ROWS)


def _number(request: Request, name: str, default: int, most: int | None) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or (most is not None and not 1 <= int(text) <= most):
        message = f"must be a whole number{f' from 1 to {most}' if most is not None else ''}"
        raise Problem("invalid", 400, "The list cannot be shown.", [{"path": name, "message": message}])
    return int(text)
