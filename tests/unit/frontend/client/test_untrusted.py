"""No text steers a terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from ratchet_client.untrusted import printable


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_invisible_is_left(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\ufeff\U000e0041")
    assert printable(shown) == shown


def test_what_it_was_can_still_be_read() -> None:
    assert printable("\x1b[2J\x9b\u202e\n\U000e0041é🧑\u200d🚀") == "\\x1b[2J\\x9b\\u202e\\n\\U000e0041é🧑\u200d🚀"
    assert printable("a\n\tb\r\x1b", lines=True) == "a\n\tb\\r\\x1b"
