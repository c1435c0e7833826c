"""What is refused as JSON, and why."""

import pytest

from ratchet.strict_json import StrictJsonError, loads


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": NaN}', "NaN is not JSON"),
        ("[1, -Infinity]", "-Infinity is not JSON"),
        ('{"a": "x\\u0000y"}', "NUL character"),
        ('{"x\\u0000y": 1}', "NUL character"),
        ('["\\ud800"]', "half a surrogate pair"),
        ("1" * 400, "400 digits"),
        ("[1e999]", "out of range"),
        ("[" * 150 + "]" * 150, "more than 100 levels deep"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a": 1', "delimiter at column"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        ('{"a": [{"steps": 1, "b": 2, "steps": 9}]}', "names 'steps' twice"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(text: str | bytes, words: str) -> None:
    with pytest.raises(StrictJsonError, match=words):
        loads(text)


def test_ordinary_json_is_read_as_it_is() -> None:
    assert loads('{"a": [1, 2.5, "\\\\u0000", "é", "\\ud83d\\ude00", null, true]}') == {
        "a": [1, 2.5, "\\u0000", "é", "😀", None, True]
    }
