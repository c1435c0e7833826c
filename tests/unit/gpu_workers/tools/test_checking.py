"""What is said of arguments that do not fit; nothing here may raise, whatever the policy writes."""

import pytest

from gpu_workers.tools.checking import MAX_MESSAGE, SchemaProblem, find_problem, make_validator

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["m", "km"]},
        "at": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "many": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["n"],
    "additionalProperties": False,
}


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n": 1}, ""),
        ({"n": 1, "many": ["a"], "at": {"x": 0.5}, "unit": "km"}, ""),
        ({}, "argument 'n' is missing"),
        ({"n": 0}, "argument 'n': 0 is less than the minimum of 1"),
        ({"n": 1.5}, "argument 'n': 1.5 is not of type 'integer'"),
        ({"n": None}, "argument 'n': None is not of type 'integer'"),
        ({"n": 1, "unit": "mile"}, "argument 'unit': 'mile' is not one of ['m', 'km']"),
        ({"n": 1, "at": {}}, "argument 'at.x' is missing"),
        ({"n": 1, "at": {"x": "1"}}, "argument 'at.x': '1' is not of type 'number'"),
        ({"n": 1, "many": ["a", 2]}, "argument 'many.1': 2 is not of type 'string'"),
        ({"n": 1, "extra": 2}, "unknown argument 'extra'; the arguments are n, unit, at, many"),
        ({"n": float("nan")}, "argument 'n': nan is not a number of JSON"),
        ({"n": float("inf")}, "argument 'n': inf is not a number of JSON"),
        ({"n": 2**63}, "argument 'n': the integer has more than 64 bits"),
        ({"n": -(10**4000)}, "argument 'n': the integer has more than 64 bits"),
        ({"n": 1, "many": ["\ud800"]}, "argument 'many': the text holds half a character (a lone surrogate)"),
        ({"n": 1, "many": nested(40)}, "argument 'many': nested deeper than 32"),
        ({"n": 1, "many": nested(5000)}, "argument 'many': nested deeper than 32"),
        ({"n": 1, "many": {1, 2}}, "argument 'many': set is not a value of JSON"),
        ("n=1", "the arguments must be an object of named values, got str"),
        (None, "the arguments must be an object of named values, got NoneType"),
    ],
)
def test_the_problem_names_the_argument(arguments, problem):
    assert find_problem(make_validator(SCHEMA), arguments) == problem


def test_long_values_are_shortened():
    problem = find_problem(make_validator(SCHEMA), {"n": "x" * 100_000})
    assert len(problem) <= MAX_MESSAGE and problem.endswith("is not of type 'integer'")


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x", "#/nowhere", "#"])
def test_references_are_never_fetched_and_never_raise(reference):
    schema = {"type": "object", "properties": {"n": {"$ref": reference}}}
    assert isinstance(find_problem(make_validator(schema), {"n": {"n": {"n": 1}}}), str)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "nonsense"}, "not a JSON schema"),
        ({"properties": {"a": {"pattern": "("}}}, "not a JSON schema|cannot"),
        ({"type": "array"}, "must describe an object"),
        ({"type": ["object", "null"]}, "must describe an object"),
        ({"type": "object", "properties": {"a": {"pattern": "(a+)+$"}}}, "pattern"),
        ({"type": "object", "properties": {"a": {"items": {"pattern": "^(\\w+\\s?)*$"}}}}, "pattern"),
        ({"type": "object", "patternProperties": {"(x*)*": {}}}, "pattern"),
    ],
)
def test_schemas_that_cannot_be_checked_with_are_refused(schema, problem):
    with pytest.raises(SchemaProblem, match=problem):
        make_validator(schema)


def test_the_draft_that_a_schema_names_is_the_one_it_is_read_by():
    old = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "definitions": {"point": {"type": "array", "items": [{"type": "number"}, {"type": "number"}]}},
        "properties": {"at": {"$ref": "#/definitions/point"}},
    }
    assert find_problem(make_validator(old), {"at": [1, 2.5]}) == ""
    assert find_problem(make_validator(old), {"at": [1, "x"]}) == "argument 'at.1': 'x' is not of type 'number'"
    with pytest.raises(SchemaProblem, match="not a JSON schema"):
        make_validator({key: value for key, value in old.items() if key != "$schema"})


def test_harmless_patterns_are_accepted():
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+(-[a-z]{1,8}){0,3}$"}}}
    assert find_problem(make_validator(schema), {"a": "ab-cd"}) == ""
    assert "does not match" in find_problem(make_validator(schema), {"a": "AB"})
