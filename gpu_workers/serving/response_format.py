"""OpenAI's `response_format` as a constraint of the answer."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.engines.schemas import JsonSchemaError, check_json_schema
from gpu_workers.serving.errors import ApiError
from gpu_workers.sessions.constraints import answer_constraint

_SCHEMA = "response_format.json_schema.schema"


class NamedSchema(msgspec.Struct):
    """What is not `strict` is held to all the same."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


def response_constraint(wanted: ResponseFormat | None) -> Constraint | None:
    """None: any text. Raises ApiError 400 with the place in the schema."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return answer_constraint({"type": "object"})
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise ApiError(400, "missing_parameter", f"{_SCHEMA} is missing", param=_SCHEMA)
    check_schema(wanted.json_schema.schema, _SCHEMA)
    return answer_constraint(wanted.json_schema.schema)


def check_schema(schema: Any, where: str) -> None:
    """Raises ApiError 400 with the place in the schema, which is that of parameter `where`."""
    try:
        check_json_schema(schema)
    except JsonSchemaError as error:
        raise ApiError(400, "invalid_value", f"{where} {error}", param=where) from error
