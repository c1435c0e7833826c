"""What is refused as JSON, and why."""

import io

import pytest
from rest_framework.exceptions import ParseError

from ratchet.parsers import StrictJSONParser
from ratchet.strict_json import StrictJsonError, loads


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": NaN}', "^holds NaN, which is not JSON"),
        ("[1, -Infinity]", "^holds -Infinity, which"),
        ('{"a": "x\\u0000y"}', "NUL character"),
        ('{"x\\u0000y": 1}', "NUL character"),
        ('["\\ud800"]', "half a surrogate pair"),
        ("1" * 400, "^holds a number of 400 digits; at most"),
        ("[1e999]", "^holds 1e999, which is out of range"),
        ("[" * 150 + "]" * 150, "more than 100 levels deep"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": 1', "delimiter at column"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        ('{"a": [{"steps": 1, "b": 2, "steps": 9}]}', "^holds the name 'steps' twice"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(text: str | bytes, words: str) -> None:
    with pytest.raises(StrictJsonError, match=words):
        loads(text)


def test_ordinary_json_is_read_as_it_is() -> None:
    assert loads('{"a": [1, 2.5, "\\\\u0000", "é", "\\ud83d\\ude00", null, true]}') == {
        "a": [1, 2.5, "\\u0000", "é", "😀", None, True]
    }


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[NaN]", "The body holds NaN, which is not JSON: use a number or null."),
        (b"1" * 400, "The body holds a number of 400 digits; at most 300 are taken."),
        (b'{"a": 1, "a": 2}', "The body holds the name 'a' twice in one object."),
        (b"{", "The body is not JSON: Expecting property name enclosed in double quotes at column 2."),
        (b"[" * 150 + b"]" * 150, "The body is nested more than 100 levels deep."),
    ],
)
def test_a_refused_body_is_told_so_in_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(ParseError) as refused:
        StrictJSONParser().parse(io.BytesIO(body))
    assert str(refused.value.detail) == sentence
