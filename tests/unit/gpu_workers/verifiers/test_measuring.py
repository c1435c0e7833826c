"""A weak test suite measured in real sandboxes: the false pass is found, with the input that shows it."""

import pytest

from apps.tasks.suites.human_eval import PROGRAM
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.measurements import MeasureItem
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec
from gpu_workers.verifiers.measuring import measure_task
from gpu_workers.verifiers.results import NoResult, TaskError
from gpu_workers.verifiers.strong import StrongCheck, function_task

PROMPT = 'def larger(a: int, b: int) -> int:\n    """The larger one."""\n'
BODY = "    if a > b:\n        return a\n    return b\n"
WEAK = "def check(candidate):\n    assert candidate(3, 2) == 3\n    assert candidate(5, 4) == 5\n"


def task_of(*, prompt=PROMPT, body=BODY, test=WEAK, name="larger", **expected):
    return TaskBundle(
        key=name, prompt=[Message(role="user", content=prompt)],
        contract=EnvironmentContract(limits=Limits(cpu_seconds=20, verify_timeout_seconds=20.0)),
        verifier=VerifierSpec(
            kind=VerifierKind.PROGRAM, program=PROGRAM,
            expected={"prompt": prompt, "entry_point": name, "test": test, **expected},
        ),
        reference=[Message(role="assistant", content=f"```python\n{prompt}{body}```")],
    )  # fmt: skip


def check_of(task, backend, num_inputs=60):
    return StrongCheck(task, backend, seed="1", num_inputs=num_inputs)


async def test_a_weak_suite_lets_a_wrong_mutant_pass_and_it_is_found(backend):
    item = MeasureItem(task_id="t", task="", num_mutants=6)
    measured = await measure_task(item, task_of(), backend, seed=1, num_inputs=60)
    assert measured.error == "" and measured.num_possible == len(measured.outcomes) == 6
    by_line = {outcome.text.split('"""\n', 1)[1]: outcome for outcome in measured.outcomes}
    gone = by_line["    if a > b:\n        return a\n    return None\n"]  # no test asks for the second of two
    assert (gone.verdict, gone.truth, gone.difference) == ("pass", "wrong", "value")
    a, b = map(int, gone.input.split(", "))
    assert a <= b and gone.expected == str(b) and gone.got == "None"
    equal = by_line["    if a >= b:\n        return a\n    return b\n"]
    assert (equal.verdict, equal.truth, equal.num_different) == ("pass", "right", 0)
    assert equal.num_inputs == measured.num_inputs > 30
    turned = by_line["    if a < b:\n        return a\n    return b\n"]
    assert (turned.verdict, turned.truth) == ("fail", "wrong")
    again = await measure_task(item, task_of(), backend, seed=1, num_inputs=60)
    assert [(o.text, o.verdict, o.truth, o.input) for o in again.outcomes] == [
        (o.text, o.verdict, o.truth, o.input) for o in measured.outcomes
    ]


async def test_a_false_fail_is_found(backend):
    """Tests that look at the text of a number fail what is equal."""
    test = WEAK + "    import time\n    assert candidate.__name__ == 'larger' and candidate(1, 1) == 2\n"
    measured = await measure_task(
        MeasureItem(task_id="t", task="", num_mutants=20), task_of(test=test), backend, seed=1, num_inputs=40
    )
    assert ("fail", "right") in {(outcome.verdict, outcome.truth) for outcome in measured.outcomes}


@pytest.mark.parametrize(
    ("code", "kind", "shown"),
    [
        ("def larger(a, b):\n    return float(max(a, b))\n", "type", ""),
        ("def larger(a, b):\n    return [max(a, b)]\n", "value", "["),
        ("def larger(a, b):\n    return 1 // (a - 3) * 0 + max(a, b)\n", "exception", "ZeroDivisionError"),
        ("def larger(a, b):\n    while a < b:\n        pass\n    return a\n", "timeout", "3 s"),
        ("import os\n\ndef larger(a, b):\n    return max(a, b) if a > b else os._exit(0)\n", "exception", "ended"),
        ("def larger(a, b):\n    return lambda: 3\n", "exception", "returns a"),
        ("def larger(a, b):\n    return type('A', (), {'__eq__': lambda s, o: True})()\n", "exception", "returns a"),
        ("larger = 3 +\n", "exception", "SyntaxError"),
    ],
)
async def test_each_kind_of_difference(backend, code, kind, shown):
    check = check_of(task_of(), backend)
    found = await check.compare(await check.prepare(), code)
    assert found.first["kind"] == kind and shown in found.first["got"]
    assert (found.num_type > 0) == (kind == "type")


async def test_what_is_right_is_right_however_it_is_written(backend):
    check = check_of(task_of(), backend)
    cases = await check.prepare()
    found = await check.compare(cases, "def larger(*both):\n    return sorted(both)[1]\n")
    assert found.complete and not found.first and found.num_compared == len(cases.cases)


async def test_inputs_that_the_reference_refuses_are_not_used(backend):
    prompt, body = 'def root(n: int) -> float:\n    """Its root."""\n', "    assert n >= 0\n    return n ** 0.5\n"
    task = task_of(prompt=prompt, body=body, name="root", test="def check(c):\n    assert c(4) == 2\n")
    check = check_of(task, backend)
    cases = await check.prepare()
    assert cases.num_refused > 0 and cases.num_seeds == 1
    close = "import math\n\ndef root(n):\n    return math.exp(math.log(n) / 2) if n > 0 else 0.0\n"
    assert not (await check.compare(cases, close)).first, (
        "negative numbers are not asked for; the last bits are no error"
    )


async def test_functions_that_change_their_argument_are_asked_afresh(backend):
    prompt, body = (
        'def drain(xs: list) -> list:\n    """Backwards."""\n',
        "    out = []\n    while xs:\n        out.append(xs.pop())\n    return out\n",
    )
    task = task_of(prompt=prompt, body=body, name="drain", test="def check(c):\n    assert c([1, 2]) == [2, 1]\n")
    check = check_of(task, backend)
    cases = await check.prepare()
    assert len(cases.cases) == 60 and cases.num_refused == 0, "asked twice with the same"
    found = await check.compare(cases, "def drain(xs):\n    return xs[::-1]\n")
    assert found.complete and not found.first
    found = await check.compare(cases, "def drain(xs):\n    return xs[1:][::-1] + xs[:1]\n")
    assert not found.first, "the same again"
    found = await check.compare(cases, "def drain(xs):\n    return sorted(xs)\n")
    assert found.num_value > 10 and found.first["expected"] == "[2, 1]" and found.first["input"] == "[1, 2]"


async def test_tests_that_call_nothing_give_no_result(backend):
    with pytest.raises(NoResult):
        await check_of(task_of(test="def check(candidate):\n    pass\n"), backend).prepare()
    measured = await measure_task(
        MeasureItem(task_id="t", task="", num_mutants=2), task_of(test="def check(c):\n    pass\n"), backend,
        seed=1, num_inputs=10,
    )  # fmt: skip
    assert "no input" in measured.error and measured.outcomes == []


async def test_a_task_that_asks_for_no_function_is_named(backend):
    plain = TaskBundle(key="n", prompt=[], verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=3))
    with pytest.raises(TaskError, match="entry_point"):
        function_task(plain)
    measured = await measure_task(
        MeasureItem(task_id="t", task="", num_mutants=2), plain, backend, seed=1, num_inputs=9
    )
    assert "entry_point" in measured.error


async def test_an_older_answer_key_is_held_against_the_newer_one(backend):
    def key(value):
        return VerifierSpec(kind=VerifierKind.EXACT, expected=[value])

    task = TaskBundle(key="n", prompt=[], verifier=key("Paris"))
    item = MeasureItem(task_id="t", task="", answers=["Paris", "Lyon", "Rome"], verifier=key("Lyon"))
    measured = await measure_task(item, task, backend, seed=0, num_inputs=0)
    assert [(o.text, o.verdict, o.truth) for o in measured.outcomes] == [
        ("Paris", "fail", "right"), ("Lyon", "pass", "wrong"), ("Rome", "fail", "wrong"),
    ]  # fmt: skip
    assert measured.outcomes[1].expected.startswith("fail WRONG_ANSWER")


async def test_an_input_that_takes_the_reference_too_long_takes_the_heavier_ones_with_it(backend):
    prompt = 'def slow(n: int) -> int:\n    """Counts."""\n'
    body = "    while n > 500:\n        pass\n    return n\n"
    task = task_of(prompt=prompt, body=body, name="slow", test="def check(c):\n    assert c(4) == 4\n")
    cases = await check_of(task, backend).prepare()
    assert cases.num_refused > 10 and len(cases.cases) > 20


async def test_what_the_tests_call_is_used_however_slow_and_a_few_inputs_decide_nothing(backend):
    prompt = 'def slow(n: int) -> int:\n    """Itself."""\n    import time\n'
    body = "    time.sleep(0.5)\n    return n + 1\n"
    test = "def check(c):\n    assert c(4) >= 4\n    assert c(5) >= 5\n"
    task = task_of(prompt=prompt, body=body, name="slow", test=test)
    cases = await check_of(task, backend).prepare()
    assert [given for given, _ in cases.cases[:2]] == [[4], [5]]
    item = MeasureItem(task_id="t", task="", num_mutants=6)
    measured = await measure_task(
        item, task_of(prompt=prompt, body=body, name="slow", test=test), backend, seed=1, num_inputs=30
    )
    assert measured.num_inputs < 10
    assert {outcome.truth for outcome in measured.outcomes} == {"wrong", "undecided"}
