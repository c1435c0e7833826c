"""A pass that rests on what the reference's does not: methods that are the object's word, numbers that are none."""

import pytest

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec
from gpu_workers.verifiers.registry import get_verifier

LIMITS = Limits(verify_timeout_seconds=6.0, cpu_seconds=30)
BAG = "class Bag:\n def {method}\n def __len__(s): return 0\ndef uniques(xs): return Bag()"
SET = "def uniques(xs): return set(xs)"


async def judge(backend, reference, code, **spec):
    """Of a task whose reference is code too."""
    if "files" in spec:
        spec |= {"kind": VerifierKind.TESTS, "config": {"answer_file": "solution.py"} | spec.pop("config", {})}
    verifier = VerifierSpec(**{"kind": VerifierKind.PROGRAM} | spec)
    task = TaskBundle(
        key="t", prompt=[], verifier=verifier, reference=[Message(role="assistant", content=reference)],
        contract=EnvironmentContract(limits=LIMITS),
    )  # fmt: skip
    return await get_verifier(verifier, backend).verify(task, FinishedEpisode(answer=code, messages=[], files={}))


def suite(body):
    return {"test_it.py": f"from solution import *\nimport time\ndef test():\n {body}\n"}


WORDS = {
    "nothing left": ("assert uniques([1, 1, 2]).symmetric_difference({1, 2}) == set()",
                     "symmetric_difference(s, o): return set()", "TAMPER_DETECTED"),
    "handed back": ("assert uniques([1, 1, 2]).union({1, 2}) == {1, 2}", "union(s, o): return o", "TAMPER_DETECTED"),
    "nothing said": ("g = uniques([1, 2])\n g.remove(1)\n g.remove(2)\n assert len(g) == 0",
                     "remove(s, o): pass", "WRONG_ANSWER"),
    "by keyword": ("assert uniques([1, 2]).update(**{}) is None and uniques([1]).union(*[{1}]) == {1}",
                   "union(s, o): return o\n def update(s, **k): pass", "TAMPER_DETECTED"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
async def test_a_method_that_the_references_value_answers_itself_is_not_the_objects_to_answer(backend, name):
    body, method, reason = WORDS[name]
    result = await judge(backend, SET, BAG.format(method=method), files=suite(body))
    assert (result.verdict, result.score, result.reason_code) == ("fail", 0.0, reason), result
    assert (await judge(backend, SET, "def uniques(xs): return {x for x in xs}", files=suite(body))).verdict == "pass"


async def test_what_a_check_of_classes_needs_is_what_its_reference_needs(backend):
    files = suite("s = Stack()\n s.push(3)\n s.push(4)\n assert s.pop() == 4 and s.has(3) and not s.has(9)")
    stack = "class Stack(list):\n push = list.append\n def has(s, x): return x in s"
    own = (
        "class Stack:\n def __init__(s): s.items = []\n def push(s, x): s.items.append(x)\n"
        " def pop(s): return s.items.pop()\n def has(s, x): return x in s.items"
    )
    result = await judge(backend, own, own + "\n", files=files)
    assert result.verdict == "pass", result
    assert result.evidence["rests_on"] == {"method push": 2, "method has": 2}
    assert (await judge(backend, own, stack, files=files)).verdict == "pass", "it stays there"


async def test_partial_credit_is_not_for_an_objects_word(backend):
    files = suite("assert uniques([1, 2]).union({1, 2}) == {1, 2}\ndef test_b():\n assert uniques([3, 3]) == {3}")
    code = BAG.format(method="union(s, o): return o")
    result = await judge(backend, SET, code, files=files, config={"partial": True})
    assert (result.verdict, result.score) == ("fail", 0.0), result


CLAMP = (
    "from ratchet_verifier import open_candidate\ndef verify(episode):\n"
    " with open_candidate({'solution.py': episode['answer']}) as c: got = c.module('solution').mean([1, 2, 6])\n"
    " return {'score': max(0.0, min(1.0, 1.0 - abs(float(got) - 3) / 3))}"
)
MEAN = "def mean(n): return sum(n) / len(n)"


@pytest.mark.parametrize("value", ["float('nan')", "1e999 - 1e999", "__import__('decimal').Decimal('NaN')"])
async def test_no_number_passes_for_one(backend, value):
    result = await judge(backend, MEAN, f"def mean(n): return {value}", program=CLAMP)
    assert (result.verdict, result.score, result.reason_code) == ("fail", 0.0, "WRONG_ANSWER"), result
    assert "nan" in result.message
    assert (await judge(backend, MEAN, MEAN + "\n", program=CLAMP)).verdict == "pass"


async def test_infinity_is_an_answer_where_the_reference_gives_it(backend):
    files = suite("assert shortest(1) == float('inf')")
    code = "def shortest(n): return float('inf')"
    assert (await judge(backend, code, code + "\n", files=files)).verdict == "pass"


TIMED = "a = time.{clock}()\n got = squares(3)\n b = time.{clock}()\n assert b - a < 0.25 and list(got) == [0, 1, 4]"
SQUARES = "def squares(n): return [i * i for i in range(n)]"
LATE = "import time\ndef squares(n): return (time.sleep(0.1) or i * i for i in range(n))"
OBJECT = (
    "import time\nclass L:\n def __iter__(s): return (time.sleep(0.1) or i * i for i in range(3))\n"
    "def squares(n): return L()"
)
BUSY = "import time\ndef squares(n):\n while time.process_time() < 1.0: pass\n return [i * i for i in range(n)]"


@pytest.mark.parametrize("code", [LATE, OBJECT])
async def test_what_is_computed_late_is_timed(backend, code):
    result = await judge(backend, SQUARES, code, files=suite(TIMED.format(clock="perf_counter")))
    assert (result.verdict, result.score) == ("fail", 0.0), result


@pytest.mark.parametrize("clock", ["perf_counter", "monotonic", "process_time"])
async def test_a_quick_iterator_passes_a_test_of_time(backend, clock):
    code = "def squares(n): return (i * i for i in range(n))"
    assert (await judge(backend, SQUARES, code, files=suite(TIMED.format(clock=clock)))).verdict == "pass"


async def test_the_processors_time_is_the_candidates_too(backend):
    slow = await judge(backend, SQUARES, BUSY, files=suite(TIMED.format(clock="process_time")))
    assert slow.verdict == "fail", slow


async def test_an_iterator_without_end_is_not_waited_for(backend):
    files = suite("a = time.time()\n g = count()\n assert [next(g), next(g)] == [0, 1] and time.time() - a < 2")
    code = "import itertools\ndef count(): return itertools.count()"
    assert (await judge(backend, code, code, files=files)).verdict == "pass"


ORACLE = suite(
    "want = [3, 10]\n seen = []\n def emit(v):\n  assert v == want[len(seen)], f'wanted {want[len(seen)]}'\n"
    "  seen.append(v)\n running([3, 7], emit)\n assert seen == want"
)
GUESS = (
    "def running(xs, emit):\n for _ in xs:\n  for guess in range(20):\n   try:\n    emit(guess)\n    break\n"
    "   except BaseException as e: print(e)"
)
SUMS = "def running(xs, emit):\n s = 0\n for x in xs:\n  s += x\n  emit(s)"


async def test_an_assertion_of_a_callback_is_the_checks_own(backend):
    result = await judge(backend, SUMS, GUESS, files=ORACLE)
    assert (result.verdict, result.score) == ("fail", 0.0), result
    assert "wanted 3" in result.message, "the test says it, not the candidate"
    assert (await judge(backend, SUMS, SUMS + "\n", files=ORACLE)).verdict == "pass"


async def test_other_exceptions_of_a_callback_reach_the_candidate(backend):
    files = suite(
        "import pytest\n left = [1, 1]\n def flaky():\n  if left: left.pop(); raise ValueError('again')\n  return 7\n"
        " assert retry(flaky) == 7\n def bad(): assert False, 'bad'\n"
        " with pytest.raises(AssertionError, match='bad'): retry(bad)"
    )
    code = "def retry(f):\n while True:\n  try: return f()\n  except ValueError as e:\n   assert str(e) == 'again'"
    assert (await judge(backend, code, code, files=files)).verdict == "pass"
