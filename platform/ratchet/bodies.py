"""Request bodies read strictly: every wrong and every unknown field is named at once."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

from ratchet.problems import Problem, flatten_errors

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
    errors = [*flatten_errors(body.errors), *unknown_fields(body, sent)]
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


def unknown_fields(serializer: Any, data: Any, path: str = "") -> list[dict[str, str]]:
    """Fields of `data` that nothing reads, however deep the serializers are nested."""
    if isinstance(serializer, serializers.ListSerializer):
        items = data if isinstance(data, list) else []
        nested = [unknown_fields(serializer.child, item, _join(path, str(index))) for index, item in enumerate(items)]
        return [error for errors in nested for error in errors]
    if not isinstance(serializer, serializers.Serializer) or not isinstance(data, Mapping):
        return []
    known = {name: field for name, field in serializer.fields.items() if not field.read_only}
    errors = [_unknown(_join(path, str(name)), list(known)) for name in data if name not in known]
    for name, field in known.items():
        if name in data:
            errors += unknown_fields(field, data[name], _join(path, name))
    return errors


def _unknown(path: str, known: list[str]) -> dict[str, str]:
    return {"path": path, "message": f"is unknown; known: {', '.join(known)}" if known else "is unknown"}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
