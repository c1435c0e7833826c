"""The OpenAPI document: what serializers do not say of an endpoint (problems, idempotency, sparse fields)."""

from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from ratchet.endpoints import AS, FIELDS, Endpoint, ListEndpoint
from ratchet.idempotency import HEADER, MAX_KEY
from ratchet.streaming import JSON_LINES

_FIELDS = OpenApiParameter(FIELDS, str, description="Only these fields, separated by commas.")
_AS = OpenApiParameter(AS, str, enum=["jsonl"], description="Every row that matches, as JSON lines, streamed.")
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457. Programs read `code`; `errors` names every wrong field.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable; listed in docs/guides/api.md."},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
                "required": ["path", "message"],
            },
        },
    },
    "required": ["type", "title", "status", "code", "detail", "errors"],
}
_ANSWERS = {
    "400": "The request cannot be used.",
    "401": "No valid token or session came with it.",
    "403": "The caller lacks the right.",
    "404": "It does not exist, or the caller may not know of it.",
    "406": "Only application/json is spoken.",
    "409": "It does not fit the present state.",
    "411": "The length of the body is not stated.",
    "412": "It has changed since the caller looked.",
    "413": "The body is too large.",
    "415": "The body is of a type that is not taken.",
    "422": "What was sent is well-formed and cannot be done.",
    "428": "What the caller looked at must be named.",
    "429": "Too many requests; Retry-After says when to ask again.",
    "502": "What the object store holds cannot be read.",
}
_ALWAYS = ("400", "401", "403", "404", "406", "429")
_WRITES = ("409", "413", "415", "422")
_MATCHED = ("412", "428")


class ApiSchema(AutoSchema):
    """Adds what every endpoint takes, and what columns may hold."""

    def _map_serializer_field(self, field: Any, direction: Any, bypass_extensions: bool = False) -> Any:
        """A choice whose column may be empty is shown empty: the enumeration has to say so."""
        model = getattr(getattr(field.parent, "Meta", None), "model", None)
        if model is not None and isinstance(field, serializers.ChoiceField) and field.source in _columns(model):
            field.allow_blank = field.allow_blank or _columns(model)[field.source].blank
        return super()._map_serializer_field(field, direction, bypass_extensions)

    def get_override_parameters(self) -> list[Any]:
        found: list[Any] = super().get_override_parameters()
        if self.method == "GET" and isinstance(self.view, ListEndpoint):
            found = [*found, _AS]
        reads = self.method == "GET" and isinstance(self.view, Endpoint) and not getattr(self.view, "streams", False)
        return [*found, _FIELDS] if reads else found


class Generator(SchemaGenerator):
    """The document is the same for everyone while the process lives: it takes seconds, and is made once."""

    def get_schema(self, request: Any = None, public: bool = False) -> Any:
        return _document()


@cache
def _document() -> Any:
    return SchemaGenerator().get_schema(request=None, public=True)


def _columns(model: Any) -> dict[str, Any]:
    return {column.name: column for column in model._meta.concrete_fields}


def _open(value: Any) -> None:
    """`oneOf: [{}, null]` means anything, but null fits both: say just anything."""
    if isinstance(value, dict):
        if {} in value.get("oneOf", []):
            del value["oneOf"]
        for item in value.values():
            _open(item)
    elif isinstance(value, list):
        for item in value:
            _open(item)


def complete(result: dict[str, Any], generator: Any, **_: Any) -> dict[str, Any]:
    """A hook of drf-spectacular: problems and headers of every operation, and bodies without unknown fields."""
    components = result.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = _PROBLEM
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    components["responses"] = {
        f"Problem{status}": {"description": words, "content": problem} for status, words in _ANSWERS.items()
    }
    _open(components["schemas"])
    for name, schema in components["schemas"].items():
        if name.endswith("Request") and schema.get("type") == "object" and "properties" in schema:
            schema["additionalProperties"] = False
    for path in result["paths"].values():
        for method, operation in path.items():
            _complete(method, operation)
    return result


def _complete(method: str, operation: dict[str, Any]) -> None:
    names = {parameter["name"] for parameter in operation.get("parameters", [])}
    if AS in names and "page_size" in names:
        operation["responses"]["200"]["content"][JSON_LINES] = {"schema": {"type": "string"}}
    statuses = [*_ALWAYS]
    if method != "get":
        statuses += _WRITES
    if "multipart/form-data" in operation.get("requestBody", {}).get("content", {}):
        statuses.append("411")
    if "If-Match" in names:
        statuses += _MATCHED
    if method == "get" and any(word in operation["operationId"] for word in ("episode", "report", "group", "tasks")):
        statuses.append("502")
    for status in statuses:
        operation["responses"].setdefault(status, {"$ref": f"#/components/responses/Problem{status}"})
    if method == "post" and not operation.pop("x-keeps-no-answer", False):
        schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]+$"}
        words = "The same key and body get the same answer, once; another body with it is refused."
        header = {"name": HEADER, "in": "header", "required": False, "schema": schema, "description": words}
        operation.setdefault("parameters", []).append(header)
