"""Inputs mutated by type: edge cases of each type, shapes kept, seeds first, the same for a seed."""

import random

import pytest

from gpu_workers.verifiers.inside.inputs import MAX_ITEMS, literals, more_inputs, mutate, small, weight


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (5, [0, 6, 4, -5, 501]),
        (2.5, [0.0, -2.5, 1.25]),
        (True, [False]),
        ("ab C", ["", "ab Cab C", "AB C", "ab c", "C ba", "ab  C", "b C"]),
        ([1, 2], [[], [1, 2, 1, 2], [2, 1], [1]]),
        ((1, "x"), [("x", 1)]),
        ({"k": 1}, [{}]),
        ({3}, [set()]),
    ],
)
def test_each_type_has_its_edge_cases(value, wanted):
    made = mutate(value, random.Random(1), [])
    assert all(item in made for item in wanted)
    assert {type(item) for item in made} == {type(value)}, "the shape is kept"


def test_items_inside_change_too():
    made = mutate([[1, 2], [3]], random.Random(1), [])
    assert any(len(item) == 2 and [] in item for item in made)


def test_values_of_no_plain_type_are_left():
    assert mutate(None, random.Random(1), []) == mutate(len, random.Random(1), []) == []


def test_seeds_come_first_and_nothing_twice():
    seeds = [[[1, 2], "a"], [[1, 2], "a"], [[], "b"]]
    made = more_inputs(seeds, 60, "7")
    assert made[:2] == [[[1, 2], "a"], [[], "b"]] and len(made) == 60
    assert len({repr(item) for item in made}) == 60
    assert all(type(items) is list and type(text) is str for items, text in made)
    assert made == more_inputs(seeds, 60, "7") != more_inputs(seeds, 60, "8")
    assert sum(items != [] and text not in "ab" for items, text in made) > 5, "some are two changes away"


def test_types_that_python_calls_equal_are_other_inputs():
    assert more_inputs([[1], [True], [1.0]], 6, "1")[:3] == [[1], [True], [1.0]]


def test_nothing_to_start_from():
    assert more_inputs([], 10, "1") == []
    assert more_inputs([[]], 10, "1") == [[]], "a function without arguments has one input"


def test_giants_are_no_inputs():
    assert not small(10**12) and not small([0] * (MAX_ITEMS + 1)) and not small({"a": ["x" * 1000]})
    assert small([None, (1, {"a": 2.0})]) and not small(float("inf")) and not small(object())


def test_words_stay_words():
    made = mutate("one two", random.Random(3), ["three one"])
    words = {" ".join(sorted(text.split())) for text in made}
    assert {"one", "two"} & words and any(
        len(text.split()) == 3 and set(text.split()) <= {"one", "two", "three"} for text in made
    )


def test_weights():
    assert weight([3, -4, "ab"]) == 3 + 3 + 4 + 2 and weight({"a": 2.5}) == 1 + 1 + 2.5
    assert weight(None) == weight(True) == 1


def test_numbers_in_texts_keep_their_width():
    made = mutate("03-11-2000", random.Random(1), [12])
    assert {"02-11-2000", "04-11-2000", "03-10-2000", "03-12-2000", "12-11-2000"} <= set(made)


def test_what_a_program_compares_with_is_tried():
    known = literals(
        "def f(x):\n    'A docstring that is longer than this.'\n    return x > 1.3 or x == 31 or x in 'ab'\n"
    )
    assert set(known) == {1.3, 1.3 - 0.1, 1.3 + 0.1, 31, 30, 32, -31, "ab"}
    made = more_inputs([[[2.0, 4.0]]], 100, "1", known)
    assert any(1.3 in numbers for (numbers,) in made)
    assert all(type(item) is float for (numbers,) in made for item in numbers)
