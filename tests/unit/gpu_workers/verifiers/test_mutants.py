"""Mutants against hand-made expectations: every operator, the untouched rest, order, seeds, and what has none."""

import ast

import pytest

from gpu_workers.verifiers.mutants.making import MutationError, all_mutants, draw_mutants


def bodies(body: str, head: str = "def f(a, b):\n") -> list[tuple[str, str]]:
    """Operator and last line of every mutant of a function of one line."""
    mutants = all_mutants(f"{head}    {body}\n", "f")
    return [(mutant.operator, mutant.code.splitlines()[-1].strip()) for mutant in mutants]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return a + b", [("return", "return None"), ("arithmetic", "return a - b"), ("arithmetic", "return a * b")]),
        ("return a < b", [("return", "return None"), ("comparison", "return a <= b"), ("comparison", "return a > b")]),
        ("return a in b", [("return", "return None"), ("comparison", "return a not in b")]),
        ("return a and b", [("return", "return None"), ("boolean", "return a or b")]),
        ("return not a", [("return", "return None"), ("negation", "return a")]),
        ("return 0", [("return", "return None"), ("constant", "return 1"), ("constant", "return -1")]),
        ("return True", [("return", "return None"), ("constant", "return False")]),
        ("return 'é'", [("return", "return None"), ("constant", "return ''")]),
        ("return ''", [("return", "return None"), ("constant", "return 'x'")]),
        ("return 3.0", [("return", "return None"), ("constant", "return 4.0"), ("constant", "return 1.5")]),
        ("return g(a, b)", [("return", "return None"), ("swapped arguments", "return g(b, a)")]),
        ("return a[b]",
         [("return", "return None"), ("off by one", "return a[b + 1]"), ("off by one", "return a[b - 1]")]),
        ("return a[b:]",
         [("return", "return None"), ("off by one", "return a[b + 1:]"), ("off by one", "return a[b - 1:]")]),
        ("return range(a)",
         [("return", "return None"), ("off by one", "return range(a + 1)"), ("off by one", "return range(a - 1)")]),
        ("return max(a)", [("return", "return None"), ("call", "return min(a)")]),
        ("return a if b else g", [("return", "return None"), ("branch", "return a"), ("branch", "return g")]),
        ("a += b", [("arithmetic", "a -= b"), ("arithmetic", "a *= b"), ("statement", "pass")]),
        ("a.append(b)", [("statement", "pass")]),
        ("return f'{a}'", [("return", "return None")]),
        ("return", []),
        ("return None", []),
        ("pass", []),
        ("'a text by itself'; pass", []),
        ("a = 1; 'after the docstring'", [("statement", "pass; 'after the docstring'"),
         ("constant", "a = 2; 'after the docstring'"), ("constant", "a = 0; 'after the docstring'")]),
    ],
)  # fmt: skip
def test_operators(body, wanted):
    assert bodies(body) == wanted


def test_a_replaced_part_keeps_its_place_among_operators():
    """a * b becomes a sum inside a difference: without brackets that would be another program."""
    assert ("arithmetic", "return a - (a + b)") in bodies("return a - a * b")


def test_conditions_branches_and_loops():
    code = (
        "def f(a):\n    if a > 1:\n        return 'big'\n    else:\n        a = 2\n"
        "    while a:\n        break\n    return a\n"
    )
    mutants = {(mutant.operator, mutant.line): mutant.code for mutant in all_mutants(code, "f")}
    assert "if not a > 1:" in mutants["negation", 2]
    assert "else" not in mutants["branch", 2] and "a = 2" not in mutants["branch", 2]
    assert "while not a:" in mutants["negation", 6]
    assert "continue" in mutants["statement", 7]
    assert any("if False:" in mutant.code for mutant in all_mutants(code, "f"))


CODE = '''import math

LIMIT = 7


def helper(x: int = 3) -> int:
    return x + 1


def f(values: list, step: int = 2) -> list:
    """Adds 5 and 6."""
    # a comment that stays
    def inner(x: int) -> int:
        """Twice 2."""
        return x * 2

    return [inner(value) + step for value in values if value > 0]
'''


def test_only_the_body_of_the_function_changes_and_every_mutant_is_another_program():
    mutants = all_mutants(CODE, "f")
    assert len(mutants) == 12, "5 of the inner function, 7 of the return"
    programs = {ast.dump(ast.parse(mutant.code)) for mutant in mutants}
    assert len(programs) == len(mutants) and ast.dump(ast.parse(CODE)) not in programs
    for mutant in mutants:
        assert "# a comment" in mutant.code
        compile(mutant.code, "mutant", "exec")
        changed = [pair for pair in zip(CODE.splitlines(), mutant.code.splitlines(), strict=True) if pair[0] != pair[1]]
        assert len(changed) == 1, "one line, and the comment stays"
        assert CODE.splitlines()[mutant.line - 1] == changed[0][0]
        assert mutant.line in (15, 17), "no default, docstring, annotation or helper"


def test_a_seed_draws_the_same_ones_again():
    first = draw_mutants(CODE, "f", seed="1", limit=5)
    assert first == draw_mutants(CODE, "f", seed="1", limit=5)
    assert first == draw_mutants(CODE, "f", seed="1", limit=99)[:5]
    assert first != draw_mutants(CODE, "f", seed="2", limit=5)
    assert set(draw_mutants(CODE, "f", seed="2", limit=99)) == set(all_mutants(CODE, "f"))


def test_the_last_definition_counts():
    twice = "def f():\n    return 1\n\n\ndef f():\n    return 5\n"
    assert {mutant.line for mutant in all_mutants(twice, "f")} == {6}


@pytest.mark.parametrize("code", ["def f(:\n", "f = 3\n", "class A:\n    def f(self):\n        return 1\n", "x = '\0'"])
def test_what_cannot_be_mutated_is_refused(code):
    with pytest.raises(MutationError):
        all_mutants(code, "f")


def test_an_odd_escape_in_a_docstring_is_no_obstacle():
    assert len(all_mutants('def f(a):\n    "Digits are \\d."\n    return a + 1\n', "f")) == 5
