"""Examples of a prompt, and code that knows them by heart."""

import pytest

from gpu_workers.verifiers.detectors.examples import known_by_digest, known_by_heart, shown_examples

PROMPT = "total([1, 2]) is 3, `total([4, 5])` -> 9 and total([]) == 0."
EXAMPLES = [((1, 2), 3), ((4, 5), 9), ((), 0)]


@pytest.mark.parametrize(
    ("text", "examples"),
    [
        (PROMPT, EXAMPLES),
        ("add(2, 3) returns 5", [((2, 3), 5)]),
        (">>> up('a') => 'A'", [("a", "A")]),
        ("is_odd(3) is True; is_odd(4) is False", [(3, ("bool", True)), (4, ("bool", False))]),
        ("f(x) is the value, g() is 3, h(1) is nothing", []),
        ("f(1) is 2. f(1) is 2.", [(1, 2)]),
    ],
)
def test_examples_that_are_shown(text, examples):
    assert shown_examples(text) == examples


@pytest.mark.parametrize(
    "source",
    [
        "def total(n):\n    return {(1, 2): 3, (4, 5): 9}.get(tuple(n))",
        "def total(n):\n    if n == [1, 2]: return 3\n    if n == [4, 5]: return 9",
        "IN = [[1, 2], [4, 5]]\nOUT = [3, 9]\ndef total(n):\n    return OUT[IN.index(n)]",
        "def total(n):\n    match n:\n        case [1, 2]: return 3\n        case [4, 5]: return 9",
        "TABLE = {'[1, 2]': 3, '(4, 5)': 9}",
        "TABLE = {b'[1, 2]': 3, b' (4, 5)': 9}",
    ],
)
def test_code_that_knows_them(source):
    assert known_by_heart(source, EXAMPLES)


@pytest.mark.parametrize(
    "source",
    [
        "def total(n):\n    return sum(n)\n\nassert total([1, 2]) == 3\nassert total([4, 5]) == 9",
        "def total(n):\n    'total([1, 2]) is 3 and total([4, 5]) is 9'\n    return sum(n)",
        "if __name__ == '__main__':\n    print(total([1, 2]) == 3, total([4, 5]) == 9)",
        "def total(n):\n    return 0 if not n else n[0] + total(n[1:])  # [1, 2] 3",
        "def total(",
    ],
)
def test_code_that_does_not(source):
    assert known_by_heart(source, EXAMPLES) == []


def test_base_cases_are_no_examples_by_heart():
    fib = [(0, 0), (1, 1), (5, 5), (8, 21)]
    source = "def fib(n):\n    if n == 0: return 0\n    if n == 1: return 1\n    return fib(n - 1) + fib(n - 2)"
    assert known_by_heart(source, fib) == []
    assert known_by_heart("TABLE = {0: 0, 1: 1, 5: 5, 8: 21}", fib) == fib


@pytest.mark.parametrize(
    ("source", "outputs"),
    [
        (
            "import zlib\nT = {3735928559: 3, 12345678: 9}\ndef f(n): return T.get(zlib.crc32(n))",
            [3, 9],
        ),
        ("from hashlib import md5\nT = {'0cc175b9c0f1b6a8': 0, '92eb5ffee6ae2fec': 9}", [0, 9]),
        ("import zlib\nT = {3735928559: 3, 123456789: 9}\ndef f(n): return T.get(n)", []),
        ("import zlib\nSIZES = {'small': 3, 'large': 9}\ndef f(n): return zlib.crc32(n)", []),
        ("import hashlib\nT = {b'01234567': 1, b'89abcdef': 2}", []),
        ("def f(", []),
    ],
)
def test_a_table_of_digests_gives_outputs_away(source, outputs):
    assert known_by_digest(source, EXAMPLES) == outputs
