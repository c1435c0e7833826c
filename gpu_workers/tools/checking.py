"""Checks a call's arguments against a tool's JSON schema before anything is started for it. Pure."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from gpu_workers.tools.patterns import backtracks

MAX_MESSAGE = 400  # characters; the policy reads it
MAX_DEPTH = 32
MAX_INTEGER = 2**63  # beyond it databases and other languages' JSON lose digits


class SchemaProblem(ValueError):
    """Parameters that are no JSON schema of an object."""


def make_validator(parameters: Mapping[str, Any]) -> Validator:
    """A validator of the draft that "$schema" names, else of 2020-12. Raises SchemaProblem.

    It fetches nothing: its registry is empty, so a "$ref" to an address leads nowhere.
    """
    draft = validator_for(parameters, default=Draft202012Validator)
    try:
        draft.check_schema(parameters)
    except SchemaError as error:
        raise SchemaProblem(f"parameters are not a JSON schema: {error.message}") from error
    except RecursionError as error:
        raise SchemaProblem("parameters are not a JSON schema: nested too deeply") from error
    if parameters.get("type", "object") != "object":
        raise SchemaProblem(f"parameters must describe an object, not {parameters['type']!r}: arguments have names")
    for pattern in _patterns(parameters):
        if backtracks(pattern):
            raise SchemaProblem(f"the pattern {pattern!r} repeats a repetition: a text could make its check hang")
    made: Validator = draft(parameters, registry=Registry())
    return made


def _patterns(schema: Any) -> Iterator[str]:
    """Every regular expression of a schema; the policy's texts are matched against them on the worker."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            elif key == "patternProperties" and isinstance(value, Mapping):
                yield from value
            yield from _patterns(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _patterns(item)


@lru_cache(maxsize=1024)
def cached_validator(parameters: bytes) -> Validator:
    """As `make_validator`, of a schema as JSON."""
    return make_validator(json.loads(parameters))


def find_problem(validator: Validator, arguments: Any) -> str:
    """What is wrong with the arguments, naming the one; empty when they fit."""
    if not isinstance(arguments, dict):
        return f"the arguments must be an object of named values, got {_kind(arguments)}"
    try:
        for name, value in arguments.items():
            if problem := _unusable(value, 1):
                return _short(f"argument {name!r}: {problem}")
        error = best_match(validator.iter_errors(arguments))
    except Exception as failure:  # a "$ref" that leads nowhere: the library raises several unrelated types
        return _short(f"the arguments cannot be checked: {failure}")
    return "" if error is None else _short(_describe(error))


def _unusable(value: Any, depth: int) -> str:
    """Why no tool gets such a value, whatever its schema says."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a number of JSON"
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        return "the integer has more than 64 bits"
    if isinstance(value, str):
        return "" if _encodable(value) else "the text holds half a character (a lone surrogate)"
    if isinstance(value, dict | list):
        if depth >= MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH}"
        items = value if isinstance(value, list) else [*value.keys(), *value.values()]
        return next((problem for item in items if (problem := _unusable(item, depth + 1))), "")
    if value is None or isinstance(value, int | float):
        return ""
    return f"{_kind(value)} is not a value of JSON"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(error: ValidationError) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "required" and isinstance(error.validator_value, list):
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"argument {'.'.join(filter(None, [where, *missing[:1]]))!r} is missing"
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping) and not where:
        known = error.schema.get("properties", {})
        extra = [name for name in error.instance if name not in known]
        if error.validator_value is False and extra:
            return f"unknown argument {extra[0]!r}; the arguments are {', '.join(known) or 'none'}"
    shown = repr(error.instance)
    message = error.message
    if len(shown) > 80 and message.startswith(shown):
        message = shown[:80] + "…" + message[len(shown) :]
    return f"argument {where!r}: {message}" if where else message


def _kind(value: Any) -> str:
    return type(value).__name__


def _short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
