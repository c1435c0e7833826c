"""Several verifiers as one: who decides, what it earns, what is kept of each."""

import pytest

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierPart, VerifierSpec
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.results import TaskError

NUMBER = VerifierPart(name="number", weight=3, verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=42))
FORM = VerifierPart(
    name="form", verifier=VerifierSpec(kind=VerifierKind.EXACT, expected="Answer:", config={"pattern": "^Answer:"})
)


def crashing(on):
    program = f"def verify(e):\n if e['answer'] == {on!r}: 1/0\n return {{'score': 1.0}}"
    return VerifierPart(name="program", verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=program))


async def judge(spec, answer, reference="Answer: 42"):
    task = TaskBundle(key="t", prompt=[], verifier=spec, reference=[Message(role="assistant", content=reference)])
    return await get_verifier(spec, LocalBackend()).verify(task, FinishedEpisode(answer=answer, messages=[]))


def spec_of(*parts, **config):
    expected = config.pop("expected", None)
    return VerifierSpec(kind=VerifierKind.COMPOSITE, parts=list(parts), config=config, expected=expected)


async def test_all_must_pass_and_the_first_failure_is_the_reason():
    spec = spec_of(FORM, NUMBER)
    right = await judge(spec, "Answer: 42")
    assert (right.verdict, right.score) == ("pass", 1.0)
    assert [(c.name, c.verdict, c.weight) for c in right.components] == [("form", "pass", 1.0), ("number", "pass", 3.0)]
    wrong = await judge(spec, "41 is it")
    assert (wrong.verdict, wrong.score, wrong.reason_code) == ("fail", 0.0, "FORMAT_INVALID")
    assert wrong.message.startswith("form: ") and wrong.evidence["part"] == "form"
    assert [c.verdict for c in wrong.components] == ["fail", "fail"]


async def test_partial_credit_is_weighted_and_a_gate_of_weight_0_takes_all():
    spec = spec_of(FORM, NUMBER, partial=True)
    assert (await judge(spec, "it is 42")).score == 0.75
    assert (await judge(spec, "Answer: 41")).score == 0.25
    gate = spec_of(VerifierPart(name="form", weight=0, verifier=FORM.verifier), NUMBER, partial=True)
    assert (await judge(gate, "it is 42")).score == 0.0
    assert (await judge(gate, "Answer: 42")).score == 1.0


async def test_a_part_without_a_verdict_leaves_the_whole_without_one():
    broken = await judge(spec_of(NUMBER, crashing("Answer: 42"), partial=True), "Answer: 42")
    assert (broken.verdict, broken.score, broken.reason_code) == ("error", None, "VERIFIER_CRASH")
    assert broken.message.startswith("program: ")
    blamed = await judge(spec_of(NUMBER, crashing("42!"), partial=True), "42!")
    assert (blamed.verdict, blamed.score, blamed.reason_code) == ("fail", 0.75, "WRONG_ANSWER")


async def test_answers_by_part_come_with_the_task():
    spec = spec_of(FORM, NUMBER, expected={"number": 7})
    assert (await judge(spec, "Answer: 7", "Answer: 7")).verdict == "pass"
    assert (await judge(spec, "Answer: 42", "Answer: 7")).verdict == "fail"


async def test_the_hash_is_that_of_what_tasks_share():
    hashes = [
        get_verifier(spec, LocalBackend()).hash
        for spec in (
            spec_of(FORM, NUMBER), spec_of(FORM, NUMBER, expected={"number": 7}), spec_of(NUMBER, FORM),
            spec_of(FORM, NUMBER, partial=True),
        )
    ]  # fmt: skip
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (spec_of(), "1 to 20 parts"),
        (spec_of(FORM, FORM), "names of their own"),
        (spec_of(VerifierPart(name="a", weight=0, verifier=FORM.verifier)), "one of them above 0"),
        (spec_of(VerifierPart(name="a", weight=float("nan"), verifier=FORM.verifier)), "weight"),
        (spec_of(FORM, expected={"other": 1}), "object by part"),
        (spec_of(FORM, expected=7), "object by part"),
        (spec_of(VerifierPart(name="a", verifier=VerifierSpec(kind=VerifierKind.NUMBER))), "verifier.expected"),
        (VerifierSpec(kind=VerifierKind.EXACT, expected="a", repeats=0), "verifier.repeats"),
    ],
)
def test_a_composite_that_cannot_judge_is_refused(spec, error):
    with pytest.raises(TaskError, match=error):
        get_verifier(spec, LocalBackend())


def test_composites_have_a_depth():
    spec = spec_of(FORM)
    for _ in range(3):
        spec = spec_of(VerifierPart(name="inner", verifier=spec))
    with pytest.raises(TaskError, match="nested 3 deep"):
        get_verifier(spec, LocalBackend())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("Answer: 42", "OK"), ("Answer: 41 or 42", "FORMAT_INVALID"), ("Answer: 6 times 7, so 42", "OK")],
)
async def test_a_part_that_is_left_a_choice_has_no_answer(answer, reason):
    result = await judge(spec_of(FORM, NUMBER, partial=True), answer)
    assert (result.reason_code, result.score) == (reason, 1.0 if reason == "OK" else 0.25)


@pytest.mark.parametrize("right", [True, False])
async def test_what_was_seen_in_any_part_is_told(right):
    program = (
        "from ratchet_verifier import open_candidate\n"
        "def verify(e):\n"
        " with open_candidate({'m.py': 'open(\"/solution/x\")'}) as candidate:\n"
        "  try: candidate.module('m')\n"
        "  except OSError: pass\n"
        " return {'score': 1.0}"
    )
    reading = VerifierPart(name="reading", verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program=program))
    result = await judge(spec_of(NUMBER, reading), "42" if right else "41")
    assert (result.verdict == "pass") is right
    assert result.evidence["seen_at_check"] == {"place": ["/solution/x"]}
