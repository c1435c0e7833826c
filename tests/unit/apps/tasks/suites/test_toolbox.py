import json

import msgspec
import pytest

from apps.tasks.suites import toolbox
from apps.tasks.suites.toolbox_tools import CALC_SOURCE, LOOKUP_SOURCE, evaluate
from gpu_workers.contracts.enums import Split, Verdict
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.verifiers.calls import bind_arguments, parse_python_calls
from gpu_workers.verifiers.number import NumberVerifier


@pytest.fixture(scope="module")
def tasks() -> list[tuple[Split, TaskBundle]]:
    return toolbox.build()[1]


def run_tool(source: str, arguments: dict[str, str]) -> str:
    namespace: dict[str, object] = {}
    exec(source, namespace)
    return namespace["call"](arguments)  # type: ignore[operator]


def test_sizes_and_keys(tasks: list[tuple[Split, TaskBundle]]) -> None:
    assert {split: sum(s is split for s, _ in tasks) for split in Split} == toolbox.SIZES
    assert len({task.key for _, task in tasks}) == len(tasks)


def test_the_seed_fixes_every_byte() -> None:
    sizes = {Split.TRAIN: 20, Split.HELDOUT: 20}
    first, again, other = (toolbox.build(seed=seed, sizes=sizes)[1] for seed in (1, 1, 2))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert msgspec.json.encode(first) != msgspec.json.encode(other)


def test_no_entity_and_no_question_is_in_two_splits(tasks: list[tuple[Split, TaskBundle]]) -> None:
    entities: dict[str, set[Split]] = {}
    questions: dict[str, set[Split]] = {}
    for split, task in tasks:
        for name in json.loads(task.contract.files["table.json"]):
            entities.setdefault(name.split()[-1], set()).add(split)
        questions.setdefault(task.prompt[-1].content, set()).add(split)
    assert all(len(splits) == 1 for splits in entities.values())
    assert all(len(splits) == 1 for splits in questions.values())
    assert set(entities).isdisjoint(toolbox.EXAMPLE_FAMILIES)


def test_references_are_what_the_tools_say(tasks: list[tuple[Split, TaskBundle]], monkeypatch, tmp_path) -> None:
    """Every call of every reference, executed by the source that runs in the sandbox."""
    monkeypatch.chdir(tmp_path)
    for _, task in tasks[::7]:
        (tmp_path / "table.json").write_text(task.contract.files["table.json"])
        sources = {tool.name: tool.source for tool in task.tools}
        schemas = {tool.name: tool.parameters for tool in task.tools}
        for turn, result in zip(task.reference[:-1:2], task.reference[1::2], strict=True):
            (call,) = parse_python_calls(turn.content)
            assert run_tool(sources[call.name], bind_arguments(call, schemas[call.name])) == result.content
        assert len(task.reference) // 2 + 1 < task.max_turns, "one spare turn for a mistake"


async def test_only_the_right_single_number_passes(tasks: list[tuple[Split, TaskBundle]]) -> None:
    for _, task in tasks[::11]:
        right = task.verifier.expected["answer"]
        verifier = NumberVerifier(task.verifier)
        cases = {f"Answer: {right}": "pass", f"{right}.": "pass", f"Answer: 1 2 {right}": "fail", "": "fail"}
        cases |= dict.fromkeys(task.known_bad, "fail")
        for answer, verdict in cases.items():
            result = await verifier.verify(task, FinishedEpisode(answer=answer, messages=[]))
            assert result.verdict == verdict, answer


async def test_results_on_the_way_earn_credit_but_never_a_pass(tasks: list[tuple[Split, TaskBundle]]) -> None:
    task = next(task for _, task in tasks if len(task.verifier.expected["results"]) == 3)
    verifier = NumberVerifier(task.verifier)
    results = task.verifier.expected["results"]
    for count in range(4):
        said = [{"role": "tool", "content": text, "ok": True} for text in results[:count]]
        failed = [{"role": "tool", "content": text, "ok": False} for text in results]
        result = await verifier.verify(task, FinishedEpisode(answer="Answer: 0", messages=[*said, *said, *failed]))
        assert result.verdict == "fail"
        assert result.score == pytest.approx(toolbox.RESULTS_CREDIT * count / 3)
    assert (await verifier.verify(task, FinishedEpisode(answer="", messages=[]))).score == 0


async def test_the_audit_fails_a_right_answer_that_rests_on_no_lookup(tasks: list[tuple[Split, TaskBundle]]) -> None:
    task = next(task for _, task in tasks if task.tags == ["total"])
    assert task.audit_verifier is not None
    answer, looked_up = f"Answer: {task.audit_verifier.expected['answer']}", task.audit_verifier.expected["results"]
    assert len(looked_up) == 2
    verdicts = []
    for said in ([], looked_up[:1], looked_up):
        messages = [{"role": "tool", "content": text, "ok": True} for text in said]
        episode = FinishedEpisode(answer=answer, messages=messages)
        assert (await NumberVerifier(task.verifier).verify(task, episode)).verdict == Verdict.PASS
        verdicts.append((await NumberVerifier(task.audit_verifier).verify(task, episode)).verdict)
    assert verdicts == [Verdict.FAIL, Verdict.FAIL, Verdict.PASS]
    product = next(task for _, task in tasks if task.tags == ["product"])  # both numbers stand in the question
    assert product.audit_verifier is not None and product.audit_verifier.expected["results"] == []
    by_heart = FinishedEpisode(answer=f"Answer: {product.audit_verifier.expected['answer']}", messages=[])
    assert (await NumberVerifier(product.audit_verifier).verify(product, by_heart)).verdict == Verdict.PASS


def test_the_prompt_does_not_tell_the_values(tasks: list[tuple[Split, TaskBundle]]) -> None:
    for _, task in tasks:
        if "product" not in task.tags:
            assert str(task.verifier.expected["answer"]) not in task.prompt[-1].content.replace(",", "").split()


@pytest.mark.parametrize(
    ("expression", "value"), [("2*3", "6"), ("(2+3)*4", "20"), ("7/2", "3.5"), ("10/5", "2"), ("-3+1", "-2")]
)
def test_calculator(expression: str, value: str) -> None:
    assert run_tool(CALC_SOURCE, {"expression": expression}) == value


@pytest.mark.parametrize("expression", ["", "2**9", "open('x')", "a+1", "True+1", "2 3", "__import__('os')"])
def test_calculator_refuses_all_but_arithmetic(expression: str) -> None:
    with pytest.raises(ValueError, match=r"arithmetic|allowed"):
        run_tool(CALC_SOURCE, {"expression": expression})


def test_lookup_says_what_it_does_not_know(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.json").write_text('{"red mug": {"price": 5}}')
    assert run_tool(LOOKUP_SOURCE, {"entity": " Red Mug", "field": "price"}) == "5"
    with pytest.raises(ValueError, match="no such entity"):
        run_tool(LOOKUP_SOURCE, {"entity": "mug", "field": "price"})
    with pytest.raises(ValueError, match="no such field"):
        run_tool(LOOKUP_SOURCE, {"entity": "red mug", "field": "colour"})


def test_reference_arithmetic_refuses_division() -> None:
    with pytest.raises(ValueError, match="integer expression"):
        evaluate("4/2")
