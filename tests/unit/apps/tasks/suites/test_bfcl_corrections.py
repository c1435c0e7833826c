"""Two releases of Berkeley function calling: what was corrected, and answers that tell the keys apart."""

import json

import pytest

from apps.tasks.suites.bfcl_corrections import compare_keys, key_answers, older_keys
from apps.tasks.suites.errors import SuiteError


def write(folder, name, rows, questions):
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    answers = [{"id": key, "ground_truth": truth} for key, truth in rows.items()]
    (folder / "possible_answer" / name).write_text("\n".join(map(json.dumps, answers)))
    asked = [{"id": key, "question": [[{"role": "user", "content": text}]]} for key, text in questions.items()]
    (folder / name).write_text("\n".join(map(json.dumps, asked)))


@pytest.fixture
def releases(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    write(
        old, "BFCL_v3_simple.json",
        {"simple_0": [{"f": {"a": [1]}}], "simple_1": [{"f": {"a": [2]}}], "simple_2": [{"f": {"a": [3]}}],
         "simple_9": [{"f": {}}]},
        {"simple_0": "zero", "simple_1": "one", "simple_2": "two", "simple_9": "gone"},
    )  # fmt: skip
    write(
        new, "BFCL_v4_simple_python.json",
        {"simple_python_0": [{"f": {"a": [1]}}], "simple_python_1": [{"g": {"a": [2]}}],
         "simple_python_2": [{"f": {"a": [4]}}]},
        {"simple_python_0": "zero", "simple_python_1": "one", "simple_python_2": "another two"},
    )  # fmt: skip
    write(old, "BFCL_v3_multi_turn_base.json", {"multi_turn_base_0": [["f()"]]}, {"multi_turn_base_0": "x"})
    write(new, "BFCL_v4_multi_turn_base.json", {"multi_turn_base_0": [["f()"]]}, {"multi_turn_base_0": "x"})
    return old, new


def test_categories_meet_under_their_present_names(releases):
    changes = {change.category: change for change in compare_keys(*releases)}
    assert set(changes) == {"simple_python", "multi_turn_base"}
    simple = changes["simple_python"]
    assert (simple.num_tasks, simple.num_corrected, simple.num_asked_otherwise) == (3, 2, 1)
    assert changes["multi_turn_base"].num_corrected == 0


def test_older_keys_carry_present_ids(releases):
    keys = older_keys(releases[0])
    assert keys["simple_python_1"] == {"name": "f", "arguments": {"a": [2]}}
    assert "multi_turn_base_0" not in keys, "no category of the suite"


def test_a_folder_that_is_none_is_named(tmp_path, releases):
    with pytest.raises(SuiteError, match="name its folder"):
        compare_keys(tmp_path / "nowhere", releases[1])


@pytest.mark.parametrize(
    ("old", "new", "answers"),
    [
        ({"a": [1]}, {"a": [1]}, ["f(a=1)"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["f(a=1)", "f(a=2)", "f(a=3)"]),
        ({"a": [True, False]}, {"a": [True]}, ["f(a=True)", "f(a=False)"]),
        ({"a": [1]}, {"a": [1.0]}, ["f(a=1)", "f(a=1.0)"]),
        ({"a": [1], "b": [2]}, {"a": [1], "b": [2, ""]}, ["f(a=1, b=2)", "f(a=1)"]),
        ({"a": [1]}, {"b": [1]}, ["f(a=1)", "f(b=1)"]),
        (
            {"b": [{"y": [1], "x": [2]}], "a": [1]},
            {"a": [1], "b": [{"x": [2], "y": [1]}]},
            ['f(a=1, b={"x": 2, "y": 1})'],
        ),
    ],
)
def test_answers_that_tell_two_keys_apart(old, new, answers):
    assert key_answers({"name": "f", "arguments": old}, {"name": "f", "arguments": new}) == answers
