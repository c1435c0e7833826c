"""Spec files: what YAML and JSON mean, and where each field stands."""

import pytest

from ratchet_client.errors import SpecError
from ratchet_client.spec_files import read_spec, set_field


def test_numbers_and_words_are_those_of_yaml_1_2() -> None:
    text = "rate: 2e-4\nname: no\nday: 2026-01-01\nn: 010\nv: 1_000\non: off\nt: true\nz: ~\nq: '7'\nx: 0.5\nl: [1, -2]"
    assert read_spec("s", text).value == {
        "rate": 2e-4, "name": "no", "day": "2026-01-01", "n": 10, "v": "1_000", "on": "off", "t": True, "z": None,
        "q": "7", "x": 0.5, "l": [1, -2],
    }  # fmt: skip


def test_json_is_read_alike() -> None:
    text = '{"suite": "people\\u00e9", "rollout": {"group_size": 8},\n "optimiser": {"learning_rate": 1e-5}}'
    spec = read_spec("s.json", text)
    expected = {"suite": "peopleé", "rollout": {"group_size": 8}, "optimiser": {"learning_rate": 1e-5}}
    assert spec.value == expected and spec.where("optimiser.learning_rate") == "s.json:2"


def test_a_field_is_found_by_its_path_and_a_missing_one_by_its_parent() -> None:
    spec = read_spec("s.yaml", "steps: 3\nrollout:\n  group_size: 1\n\n  top_p: 0.5\n")
    assert [spec.where(path) for path in ("rollout.top_p", "rollout.seed", "lora.rank", "lora")] == [
        "s.yaml:5", "s.yaml:2", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a: 1\nb: 2\na: 3", "s:3: a is there twice"),
        ("a: [1", "s:1"),
        ("a: 1e999", "s:1"),
        ("? [1]\n: 2", "must be a text"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper"),
        ("&a [*a]", "nested deeper"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\x00", "neither YAML nor JSON"),
    ],
)
def test_what_is_no_spec_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_spec("s", text)


def test_tags_of_python_mean_nothing() -> None:
    assert read_spec("s", "a: !!python/object/apply:os.system ['true']").value == {"a": ["true"]}
    with pytest.raises(SpecError, match="s:1"):
        read_spec("s", "a: !!python/name:os.system x")


def test_a_field_is_set_by_its_path() -> None:
    spec = {"rollout": {"group_size": 8}, "suite": "s"}
    for assignment in ("rollout.group_size=4", "lora.rank=16", "name=a b", "optimiser.decay=true"):
        set_field(spec, assignment)
    assert spec == {
        "rollout": {"group_size": 4}, "suite": "s", "lora": {"rank": 16}, "name": "a b", "optimiser": {"decay": True},
    }  # fmt: skip
    for wrong in ("suite.x=1", "nonsense", "=1"):
        with pytest.raises(SpecError):
            set_field(spec, wrong)
