import json
from typing import Any

import pytest

from apps.tasks.suites.errors import SuiteError
from apps.tasks.suites.jsonl import parse_suite
from gpu_workers.contracts.enums import Split, VerifierKind

HEADER: dict[str, Any] = {"slug": "mine", "title": "Mine", "verifier": {"kind": "number"}}
LINE: dict[str, Any] = {"key": "a", "split": "train", "prompt": "1+1?", "expected": 2}
PROGRAM = "def verify(episode):\n    return {'score': 1}\n"


def lines(*changes: dict[str, Any]) -> list[str]:
    return [json.dumps({**LINE, "key": f"k{i}", "prompt": f"{i}?", **change}) for i, change in enumerate(changes)]


def problems(header: dict[str, Any], rows: list[str]) -> list[tuple[int, str]]:
    with pytest.raises(SuiteError) as caught:
        parse_suite(header, rows)
    assert all(error.message for error in caught.value.errors)
    return [(error.line, error.field) for error in caught.value.errors]


def test_a_whole_suite() -> None:
    header = HEADER | {"system": "Be brief.", "distribution": "sums", "max_turns": 4, "limits": {"cpu_seconds": 3}}
    row = {"split": "heldout", "reference": "2", "known_bad": ["3"], "files": {"a.txt": "x"}, "cluster": "c"}
    definition, tasks = parse_suite(header, [*lines({}, row), "", "  "])
    assert (definition.slug, definition.verifier_kind, definition.distribution) == ("mine", VerifierKind.NUMBER, "sums")
    assert [split for split, _ in tasks] == [Split.TRAIN, Split.HELDOUT]
    task = tasks[1][1]
    assert [(m.role, m.content) for m in task.prompt] == [("system", "Be brief."), ("user", "1?")]
    assert (task.max_turns, task.contract.limits.cpu_seconds, task.contract.files) == (4, 3, {"a.txt": "x"})
    assert (task.reference[0].content, task.known_bad, task.cluster) == ("2", ["3"], "c")


def test_a_program_is_the_verifier_of_every_task() -> None:
    header = HEADER | {"verifier": {"kind": "program", "program": PROGRAM}}
    _, tasks = parse_suite(header, lines({"expected": None}))
    assert tasks[0][1].verifier.program == PROGRAM


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"split": "test"}, "split"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [{"role": "user"}]}, "prompt[0].content"),
        ({"prompt": [{"role": "boss", "content": "x"}, {"role": "user", "content": "y"}]}, "prompt[0].role"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "prompt[0].role"),
        ({"expected": None}, "expected"),
        ({"colour": "red"}, "colour"),
        ({"max_turns": -1}, "max_turns"),
        ({"tool_format": "xml"}, "tool_format"),
        ({"files": {"../a": "x"}}, "files.../a"),
        ({"tools": [{"name": "mine"}]}, "tools[0].source"),
        ({"tools": [{"name": "mine", "source": "def call(:"}]}, "tools[0].source"),
        ({"tools": [{"name": "mine", "source": "x = 1"}]}, "tools[0].source"),
        ({"tools": [{"name": "a b", "source": "def call(a): pass"}]}, "tools[0].name"),
        ({"reference": [{"role": "user", "content": "x"}]}, "reference"),
        ({"key": " "}, "key"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(change: dict[str, Any], field: str) -> None:
    assert problems(HEADER, lines({}, {}, change)) == [(3, field)]


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"key": NaN, "split": "train"'])
def test_a_line_that_is_no_object(text: str) -> None:
    assert problems(HEADER, [*lines({}), text]) == [(2, "")]


def test_a_missing_field_is_named() -> None:
    row = {name: value for name, value in LINE.items() if name != "split"}
    assert problems(HEADER, [json.dumps(row)]) == [(1, "split")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"slug": "My Suite"}, "slug"),
        ({"title": " "}, "title"),
        ({"max_turns": 0}, "max_turns"),
        ({"verifier": {"kind": "magic"}}, "verifier.kind"),
        ({"verifier": {"kind": "program"}}, "verifier.program"),
        ({"verifier": {"kind": "program", "program": "def verify(:"}}, "verifier.program"),
        ({"verifier": {"kind": "exact", "program": PROGRAM}}, "verifier.program"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_wrong_header_is_named_with_its_field(change: dict[str, Any], field: str) -> None:
    assert problems(HEADER | change, lines({})) == [(0, field)]


def test_every_problem_is_told_at_once() -> None:
    rows = [*lines({"expected": None}), "{", *lines({"split": "x"})]
    assert problems(HEADER | {"title": ""}, rows) == [(0, "title"), (1, "expected"), (2, ""), (3, "split")]


def test_a_malformed_line_is_told_by_one_number() -> None:
    with pytest.raises(SuiteError) as caught:
        parse_suite(HEADER, [*lines({}), '{"key": 3,,}'])
    (problem,) = caught.value.errors
    assert problem.line == 2 and "column 11" in problem.message and "line" not in problem.message


def test_overlapping_splits_are_refused() -> None:
    same_prompt = lines({"prompt": "x"}, {"prompt": "x", "split": "heldout"})
    assert problems(HEADER, same_prompt) == [(2, "prompt")]
    same_key = lines({"key": "k"}, {"key": "k", "split": "heldout"})
    assert problems(HEADER, same_key) == [(2, "key")]


def test_one_prompt_twice_in_a_split_is_allowed() -> None:
    assert len(parse_suite(HEADER, lines({"prompt": "x"}, {"prompt": "x"}))[1]) == 2


def test_an_empty_file_is_refused() -> None:
    assert problems(HEADER, ["", " "]) == [(1, "")]


AUDIT = {"kind": "program", "version": 2, "program": PROGRAM, "repeats": 2}


def test_an_audit_verifier_stands_beside_the_training_one() -> None:
    definition, tasks = parse_suite(HEADER | {"audit_verifier": AUDIT}, lines({}, {"audit_expected": [1, 2]}))
    assert (definition.audit_kind, definition.audit_version) == (VerifierKind.PROGRAM, 2)
    first, second = (task.audit_verifier for _, task in tasks)
    assert first is not None and second is not None
    assert (first.kind, first.repeats, first.expected, second.expected) == (VerifierKind.PROGRAM, 2, 2, [1, 2])
    plain, tasks = parse_suite(HEADER, lines({}))
    assert plain.audit_kind is None and tasks[0][1].audit_verifier is None


def test_a_tree_of_tests_and_a_composite() -> None:
    tests = {"kind": "tests", "files": {"test_a.py": "def test(): pass"}, "config": {"answer_file": "a.py"}}
    _, tasks = parse_suite(HEADER | {"verifier": tests}, lines({"expected": None}))
    assert tasks[0][1].verifier.files == tests["files"]
    parts = [{"name": "sum", "verifier": {"kind": "number"}}, {"name": "code", "weight": 2, "verifier": tests}]
    composite = {"kind": "composite", "parts": parts}
    _, tasks = parse_suite(HEADER | {"verifier": composite}, lines({"expected": {"sum": 3}}))
    assert [part.name for part in tasks[0][1].verifier.parts] == ["sum", "code"]


@pytest.mark.parametrize(
    ("name", "verifier", "field"),
    [
        ("verifier", {"kind": "tests"}, "verifier.files"),
        ("verifier", {"kind": "script"}, "verifier.files"),
        ("verifier", {"kind": "composite"}, "verifier.parts"),
        ("verifier", {"kind": "number", "files": {"a": "b"}}, "verifier.files"),
        ("audit_verifier", {"kind": "program"}, "audit_verifier.program"),
        ("audit_verifier", {"kind": "program", "program": "x = 1"}, "audit_verifier.program"),
        ("audit_verifier", {"kind": "psychic"}, "audit_verifier.kind"),
    ],
)
def test_a_verifier_that_lacks_what_its_kind_needs(name: str, verifier: dict[str, Any], field: str) -> None:
    assert problems(HEADER | {name: verifier}, lines({})) == [(0, field)]
