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


def test_overlapping_splits_are_refused() -> None:
    same_prompt = lines({"prompt": "x"}, {"prompt": "x", "split": "heldout"})
    assert problems(HEADER, same_prompt) == [(2, "prompt")]
    same_key = lines({"key": "k"}, {"key": "k", "split": "heldout"})
    assert problems(HEADER, same_key) == [(2, "key")]


def test_one_prompt_twice_in_a_split_is_allowed() -> None:
    assert len(parse_suite(HEADER, lines({"prompt": "x"}, {"prompt": "x"}))[1]) == 2


def test_an_empty_file_is_refused() -> None:
    assert problems(HEADER, ["", " "]) == [(1, "")]
