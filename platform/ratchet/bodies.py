"""Request bodies read strictly: every wrong and every unknown field is named at once."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request

from ratchet.problems import Problem, flatten_errors

MAX_ROWS = 200  # of a computed list in one answer
_DIGITS = 18
_TYPES: tuple[tuple[type, Any, str], ...] = (
    (serializers.CharField, str, "a text"),
    (serializers.ChoiceField, str, "a text"),
    (serializers.BooleanField, bool, "true or false"),
    (serializers.IntegerField, int | float, "a whole number"),
    (serializers.FloatField, int | float, "a number"),
)
_FLAGS = ("true", "false", "1", "0")
_DETAIL = "The request has fields that cannot be used."


def read_body(
    request: Request, serializer_class: type[serializers.Serializer[Any]], data: Any = None, *, partial: bool = False
) -> dict[str, Any]:
    """The validated body (`data`: in place of the request's). Raises Problem 400 with the path of every wrong field.

    A field that the serializer does not have, or only shows, is refused: a misspelt option must not be ignored.
    """
    sent = request.data if data is None else data
    body = serializer_class(data=sent, partial=partial)
    body.is_valid()
    errors = flatten_errors(body.errors)
    named = {error["path"] for error in errors}
    typed = data is None and isinstance(sent, Mapping) and not hasattr(sent, "lists")  # a form's values are all texts
    errors += [error for error in strict_errors(body, sent, typed=typed) if error["path"] not in named]
    if errors:
        raise Problem("invalid", 400, _DETAIL, errors)
    validated: dict[str, Any] = body.validated_data
    return validated


def refuse_body(request: Request) -> None:
    """Raise Problem 400 where a body came to an address that takes none."""
    if not request.data:
        return
    names = request.data if isinstance(request.data, Mapping) else [""]
    raise Problem("invalid", 400, _DETAIL, [{"path": str(name), "message": "is unknown"} for name in names])


def number(request: Request, name: str, default: int, low: int = 0, high: int = 2**62) -> int:
    """A whole number of the address. Raises Problem 400 for anything else than `low` to `high`."""
    text = request.query_params.get(name, str(default))
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS and low <= int(text) <= high:
        return int(text)
    bounds = f" from {low} to {high}" if high < 2**62 else ""
    raise _invalid_parameter(name, f"must be a whole number{bounds}")


def optional_number(request: Request, name: str, low: int = -(2**62), high: int = 2**62) -> int | None:
    """A whole number of the address that may be negative and may be absent. Raises Problem 400."""
    text = request.query_params.get(name)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS and low <= int(text) <= high:
        return int(text)
    bounds = f" from {low} to {high}" if high < 2**62 else ""
    raise _invalid_parameter(name, f"must be a whole number{bounds}")


def part(request: Request) -> tuple[int, int]:
    """Offset and limit of a list that is computed and no table's. Raises Problem 400."""
    return number(request, "offset", 0), number(request, "limit", 50, 1, MAX_ROWS)


def part_parameters() -> list[OpenApiParameter]:
    """How they are documented."""
    return [
        OpenApiParameter("offset", int, description="Rows to leave out at the start."),
        OpenApiParameter("limit", int, description=f"Rows at most, {MAX_ROWS} or fewer."),
    ]


def flag(request: Request, name: str) -> bool:
    """A truth value of the address; absent: false. Raises Problem 400 for anything else."""
    text = request.query_params.get(name, "false")
    if text not in _FLAGS:
        raise _invalid_parameter(name, f"must be one of {', '.join(_FLAGS)}")
    return text in ("true", "1")


def flag_parameter(name: str, description: str) -> OpenApiParameter:
    """How a truth value of the address is documented."""
    return OpenApiParameter(name, str, enum=_FLAGS, description=description)


def _invalid_parameter(name: str, message: str) -> Problem:
    return Problem("invalid", 400, "The address has a value that cannot be used.", [{"path": name, "message": message}])


def strict_errors(serializer: Any, data: Any, path: str = "", *, typed: bool = False) -> list[dict[str, str]]:
    """Fields of `data` that nothing reads, and (`typed`) values that would be converted, however deep they lie."""
    if isinstance(serializer, serializers.ListSerializer):
        items = data if isinstance(data, list) else []
        nested = [
            strict_errors(serializer.child, item, _join(path, str(index)), typed=typed)
            for index, item in enumerate(items)
        ]
        return [error for errors in nested for error in errors]
    if not isinstance(serializer, serializers.Serializer):
        return [{"path": path, "message": words}] if typed and (words := _mistyped(serializer, data)) else []
    if not isinstance(data, Mapping):
        return []
    known = {name: field for name, field in serializer.fields.items() if not field.read_only}
    errors = [_unknown(_join(path, str(name)), list(known)) for name in data if name not in known]
    for name, field in known.items():
        if name in data:
            errors += strict_errors(field, data[name], _join(path, name), typed=typed)
    return errors


def _mistyped(field: Any, value: Any) -> str:
    """JSON has types: a number is no text, and a text no number."""
    if value is None:
        return ""
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        return next((words for item in value if (words := _mistyped(field.child, item))), "")
    for kind, types, words in _TYPES:
        if isinstance(field, kind):
            right = isinstance(value, types) and (isinstance(value, bool) == (types is bool))
            return "" if right else f"must be {words}"
    return ""


def _unknown(path: str, known: list[str]) -> dict[str, str]:
    return {"path": path, "message": f"is unknown; known: {', '.join(known)}" if known else "is unknown"}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
