"""The parser takes literal calls and nothing else."""

import pytest

from gpu_workers.verifiers.calls import (
    CallSyntaxError,
    ParsedCall,
    bind_arguments,
    parse_json_calls,
    parse_python_calls,
)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('f(a=1, b="x")', [ParsedCall("f", (), {"a": 1, "b": "x"})]),
        ("  f()\n", [ParsedCall("f")]),
        ("math.geo.area(2, unit='m')", [ParsedCall("math.geo.area", (2,), {"unit": "m"})]),
        ("[f(a=-1.5), g(b=[1, (2, 3)], c={'k': None})]", [
            ParsedCall("f", (), {"a": -1.5}), ParsedCall("g", (), {"b": [1, [2, 3]], "c": {"k": None}}),
        ]),
        ("```python\nf(a=True)\n```", [ParsedCall("f", (), {"a": True})]),
        ("f(a=1)\ng(a=2)", [ParsedCall("f", (), {"a": 1}), ParsedCall("g", (), {"a": 2})]),
    ],
)  # fmt: skip
def test_python_calls(text, calls):
    assert parse_python_calls(text) == calls


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no function call"),
        ("[]", "no function call"),
        ("The answer is 5.", "not a function call"),
        ("call: f(a=1)", "found AnnAssign"),
        ("x = f(a=1)", "found Assign"),
        ("f(a=1, a=1)", "keyword 'a' is repeated"),
        ("f(a={'k': 1, 'k': 2})", "key 'k' is repeated"),
        ("f(a=g(1))", "must be literals, found Call"),
        ("f(a=b)", "must be literals, found Name"),
        ("f(a=1+1)", "must be literals, found BinOp"),
        ("f(a=-True)", "must be literals"),
        ("f(a=f'{1}')", "must be literals"),
        ("f(a=b'x')", "must be literals"),
        ("f(a=1j)", "must be literals"),
        ("f(a={1: 2})", "keys of a dictionary"),
        ("f(*[1])", "must be literals, found Starred"),
        ("f(**{'a': 1})", r"\*\* is not allowed"),
        ("f(a=1)(b=2)", "called by its name"),
        ("f(a=1e999)", "too large to be finite"),
        ("f", "found Name"),
        (r"f(a='\ud800')", "half a character"),
        ("(" * 500, "not a function call"),
        ("f(a=\0)", "null bytes"),
        ("f(a='" + "x" * 40_000 + "')", "too long"),
        ("f(a=" + "9" * 5000 + ")", "Exceeds the limit"),
        ("```\nf()\n```\n```\ng()\n```", "not a function call"),
    ],
)
def test_what_is_not_a_python_call(text, error):
    with pytest.raises(CallSyntaxError, match=error):
        parse_python_calls(text)


TAGGED = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "count"),
    [(TAGGED, 1), (f"I look it up.\n{TAGGED}\n{TAGGED}", 2), ('{"name": "f", "arguments": {"a": 1}}', 1)],
)
def test_json_calls(text, count):
    assert parse_json_calls(text) == [ParsedCall("f", (), {"a": 1})] * count


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "not JSON"),
        ("[]", "no function call"),
        ("words", "not JSON"),
        (TAGGED + "<tool_call>", "do not pair up"),
        ('<tool_call>{"name": "f"</tool_call>', "not JSON"),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', "repeated"),
        ('{"name": "f", "arguments": {"a": NaN}}', "NaN is not JSON"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "too large"),
        ('{"name": "f", "arguments": [1]}', "must be an object"),
        ('{"name": "", "arguments": {}}', "a call is an object"),
        ('{"name": "f", "arguments": {}, "extra": 1}', "unknown keys"),
        ("[" * 30_000, "not JSON"),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', "half a character"),
    ],
)
def test_what_is_not_a_json_call(text, error):
    with pytest.raises(CallSyntaxError, match=error):
        parse_json_calls(text)


SCHEMA = {"type": "object", "properties": {"a": {}, "b": {}}}


def test_positional_arguments_take_the_schemas_names_in_order():
    assert bind_arguments(ParsedCall("f", (1,), {"b": 2}), SCHEMA) == {"a": 1, "b": 2}
    with pytest.raises(CallSyntaxError, match="two values for 'a'"):
        bind_arguments(ParsedCall("f", (1,), {"a": 2}), SCHEMA)
    with pytest.raises(CallSyntaxError, match="takes 2 arguments, got 3"):
        bind_arguments(ParsedCall("f", (1, 2, 3)), SCHEMA)
