import json
from pathlib import Path

import pytest

from apps.tasks.suites import bfcl
from apps.tasks.suites.bfcl_format import gold_call, json_schema, signature
from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.tasks import TaskBundle


def function(name: str, **properties: dict[str, object]) -> dict[str, object]:
    parameters = {"type": "dict", "properties": properties, "required": list(properties)[:1]}
    return {"name": name, "description": "Does it. At length.", "parameters": parameters}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """150 functions with two tasks each; every tenth task shows another function beside the right one."""
    (tmp_path / "possible_answer").mkdir()
    for category in bfcl.CATEGORIES:
        questions, answers = [], []
        for index in range(100):
            number = index // 2
            functions = [function(f"{category}.f{number}", a={"type": "integer"})]
            if index % 10 == 0:
                functions.append(function(f"{category}.f{(number + 7) % 50}", a={"type": "integer"}))
            row = {"id": f"{category}_{index}", "function": functions}
            questions.append({**row, "question": [[{"role": "user", "content": f"Do {index}."}]]})
            answers.append({"id": row["id"], "ground_truth": [{f"{category}.f{number}": {"a": [index]}}]})
        (tmp_path / f"BFCL_v4_{category}.json").write_text("\n".join(map(json.dumps, questions)))
        (tmp_path / "possible_answer" / f"BFCL_v4_{category}.json").write_text("\n".join(map(json.dumps, answers)))
    return tmp_path


def shown(task: TaskBundle) -> set[str]:
    return {tool.name for tool in task.tools}


def check_split(tasks: list[tuple[Split, TaskBundle]]) -> None:
    gold = {split: {task.cluster for s, task in tasks if s is split} for split in Split}
    in_train = set().union(*(shown(task) for split, task in tasks if split is Split.TRAIN))
    for split in (Split.DEV, Split.HELDOUT, Split.REGRESSION):
        assert gold[split]
        assert gold[split].isdisjoint(in_train), "a function outside train may not even be a distractor there"
    assert sum(map(len, gold.values())) == len(set().union(*gold.values()))


def test_split_by_function(data: Path) -> None:
    _, tasks = bfcl.build(data=data)
    check_split(tasks)
    assert bfcl.build(data=data)[1] == tasks


def test_the_real_files() -> None:
    definition, tasks = bfcl.build()
    check_split(tasks)
    counts = {split: sum(s is split for s, _ in tasks) for split in Split}
    assert counts[Split.TRAIN] > 300 and counts[Split.HELDOUT] > 250, counts
    assert "dropped" in definition.distribution
    assert max(len(task.prompt[-1].content) for _, task in tasks) <= bfcl.MAX_PROMPT_CHARACTERS
    assert len({task.key for _, task in tasks}) == len(tasks)


def test_damaged_or_missing_files_are_named(data: Path, tmp_path: Path) -> None:
    (data / "BFCL_v4_multiple.json").write_text("{")
    with pytest.raises(SuiteError, match=r"BFCL_v4_multiple\.json"):
        bfcl.build(data=data)
    with pytest.raises(SuiteError, match=r"BFCL_v4_simple_python\.json"):
        bfcl.build(data=tmp_path / "absent")


def test_signature_puts_required_parameters_first() -> None:
    described = function(
        "m.f", unit={"type": "string", "enum": ["km", "mi"]}, a={"type": "array", "items": {"type": "float"}}
    )
    described["parameters"]["required"] = ["a"]  # type: ignore[index]
    assert signature(described) == 'm.f(a: list[float], unit: "km"|"mi" = None): Does it.'


def test_schema_of_nested_parameters() -> None:
    parameter = {
        "type": "dict",
        "required": ["x"],
        "properties": {"x": {"type": "tuple", "items": {"type": "float"}}, "y": {"type": "any"}},
    }
    assert json_schema(parameter) == {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"type": "number"}}, "y": {}},
        "required": ["x"],
    }


def test_gold_call_takes_first_values_and_leaves_out_what_may_be_left_out() -> None:
    accepted = {"a": [1, 2], "b": ["", "x"], "c": [{"k": ["v", "w"], "o": ["", 1]}], "d": ['say "hi"\n']}
    assert gold_call("m.f", accepted) == 'm.f(a=1, c={"k": "v"}, d="say \\"hi\\"\\n")'
