"""Test suites as verifiers: what they may use, and candidates that would rather not be tested."""

# Programs are data here.
# ruff: noqa: E501

import pytest
from msgspec.structs import replace

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.results import TaskError

LIMITS = Limits(verify_timeout_seconds=6.0, cpu_seconds=30)
PATIENT = Limits(verify_timeout_seconds=60.0, cpu_seconds=60)  # for what is no question of time
SQUARE = "def square(n):\n    return n * n\n"
TESTS = {"tests/test_square.py": "from solution import square\n\ndef test_seven():\n    assert square(7) == 49\n"}


def task_of(tests=TESTS, reference=SQUARE, **config):
    config = {"answer_file": "solution.py", "call_timeout_seconds": 1.0} | config
    return TaskBundle(
        key="t", prompt=[], verifier=VerifierSpec(kind=VerifierKind.TESTS, files=tests, config=config),
        reference=[Message(role="assistant", content=reference)], contract=EnvironmentContract(limits=LIMITS),
    )  # fmt: skip


async def judge(backend, task, answer="", files=None):
    episode = FinishedEpisode(answer=answer, messages=[], files=files or {})
    return await get_verifier(task.verifier, backend).verify(task, episode)


FEATURES = {
    "plain values keep their types": (
        "def f(): return (1, [2.5, None], {'a': {3}}, b'x', 1+2j, frozenset({1}), range(3), 10**30)",
        "from solution import f\ndef test(): assert f() == (1, [2.5, None], {'a': {3}}, b'x', 1+2j, frozenset({1}), "
        "range(3), 10**30)\ndef test_types(): assert type(f()) is tuple and type(f()[1]) is list",
    ),
    "subclasses of built-in types count as what they are": (
        "from collections import namedtuple, defaultdict\nimport enum\nP = namedtuple('P', 'x y')\n"
        "class C(enum.IntEnum): A = 7\ndef f(): d = defaultdict(list); d['a'].append(1); return P(1, 2), d, C.A",
        "from solution import f\ndef test(): assert f() == ((1, 2), {'a': [1]}, 7)",
    ),
    "standard library values": (
        "from decimal import Decimal\nfrom fractions import Fraction\nfrom collections import Counter, deque\n"
        "import datetime\n"
        "def f(): return Decimal('1.10'), Fraction(1, 3), Counter('aab'), deque([1]), datetime.date(2026, 1, 2), "
        "datetime.timedelta(1, 2, 3)",
        "from decimal import Decimal\nfrom fractions import Fraction\nfrom collections import Counter, deque\n"
        "import datetime\n"
        "from solution import f\ndef test(): assert f() == (Decimal('1.10'), Fraction(1, 3), Counter('aab'), "
        "deque([1]), "
        "datetime.date(2026, 1, 2), datetime.timedelta(1, 2, 3))",
    ),
    "classes, operators, iteration": (
        "class V:\n def __init__(s, x): s.x = x\n def __add__(s, o): return V(s.x + o.x)\n def __eq__(s, o): "
        "return isinstance(o, V) and s.x == o.x\n def __iter__(s): yield from range(s.x)\n def __len__(s): return s.x\n"
        " def __getitem__(s, i): return i * 2\n def __contains__(s, i): return i < s.x\n",
        "from solution import V\ndef test():\n v = V(1) + V(2)\n assert v == V(3) and v != V(4)\n assert list(v) "
        "== [0, 1, 2]\n"
        " assert len(v) == 3 and v[5] == 10 and 2 in v\n assert isinstance(v, V)\n v.x = 9\n assert v.x == 9 and v",
    ),
    "exceptions of its own": (
        "class Low(Exception): pass\nclass Lower(Low): pass\ndef f(n):\n if n < 0: raise Lower(f'{n} is low')\n "
        "return 10 // n",
        "import pytest\nfrom solution import f, Low\ndef test():\n with pytest.raises(Low, match='-1 is low'): f(-1)\n"
        " with pytest.raises(ZeroDivisionError): f(0)",
    ),
    "functions handed over, arguments changed in place, generators": (
        "def apply(f, xs): return [f(x) for x in xs]\ndef sort(xs): xs.sort()\ndef count():\n n = 0\n while True:\n"
        "  yield n\n  n += 1",
        "import itertools\nfrom solution import apply, sort, count\ndef test():\n assert apply(lambda x: x + 1, "
        "[1, 2]) == [2, 3]\n"
        " xs = [3, 1, 2]; sort(xs); assert xs == [1, 2, 3]\n assert list(itertools.islice(count(), 3)) == [0, 1, 2]",
    ),
    "parametrize, fixtures, approx, skip, classes": (
        "def half(n): return n / 2",
        "import pytest\nfrom solution import half\n@pytest.fixture\ndef two():\n yield 2\n"
        "@pytest.mark.parametrize('n, want', [(1, 0.5), pytest.param(3, 1.5)])\ndef test_it(n, want): assert "
        "half(n) == want\n"
        "class TestIt:\n def setup_method(self): self.n = 4\n def test_setup(self): assert half(self.n) == 2\n"
        " def test_fixture(self, two, tmp_path): assert half(two) == pytest.approx(1.0 + 1e-9)\n"
        "@pytest.mark.skip\ndef test_never(): assert False",
    ),
    "unittest": (
        SQUARE,
        "import unittest\nimport solution\nclass TestSquare(unittest.TestCase):\n def setUp(self): self.n = 3\n"
        " def test_it(self): self.assertEqual(solution.square(self.n), 9)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
async def test_what_tests_may_use_apart_from_the_code(backend, name):
    code, tests = FEATURES[name]
    result = await judge(backend, task_of({"test_it.py": tests}), code)
    assert (result.verdict, result.score) == (Verdict.PASS, 1.0), result
    assert result.components and result.nonce and "bubblewrap" in result.isolation


HACKS = {
    "exits at import": "import sys; sys.exit(0)",
    "os._exit at import": "import os; os._exit(0)",
    "os._exit in a thread": SQUARE + "import os, threading; threading.Thread(target=lambda: os._exit(0)).start()\n"
    "import time; time.sleep(9)",
    "os._exit when called": "import os\ndef square(n): os._exit(0)",
    "equal to everything": "class E:\n __eq__ = __lt__ = __gt__ = __bool__ = lambda *a: True\ndef square(n): "
    "return E()",
    "an int equal to everything": "class E(int):\n __eq__ = lambda *a: True\ndef square(n): return E(3)",
    "its class says int": "class E:\n __class__ = int\n __eq__ = lambda *a: True\ndef square(n): return E()",
    "frames and gc": "import sys, gc\ndef square(n):\n f = sys._getframe()\n while f:\n  for v in "
    "f.f_locals.values():\n"
    "   if v == 49: return 49\n  f = f.f_back\n return [o for o in gc.get_objects() if o == 49][:1] or 0",
    "patches the asserts": "import builtins, sys\nbuiltins.AssertionError = KeyError\nsys.modules['pytest'] = None\n"
    "def square(n): return 0",
    "skips": "def square(n):\n import unittest\n raise unittest.SkipTest('no')",
    "raises a failure that is none": "class Skipped(Exception): pass\ndef square(n): raise Skipped",
    "prints that it passed": 'print(\'{"nonce": "", "result": {"num_tests": 1, "num_passed": 1, "tests": []}}\'); '
    'square = None',
    "forges the channel": "import os\nfor fd in range(3, 64):\n"
    " try: os.write(fd, b'\\xff\\xff\\xff\\x7f{\"ok\": 49}')\n except OSError: pass\nos._exit(0)",
    "forges replies": "import os, struct, json\nd = json.dumps({'raise': {'exception': [], 'builtin': "
    "'KeyboardInterrupt', "
    "'args': []}}).encode()\nfor fd in range(3, 64):\n try: os.write(fd, struct.pack('<I', len(d)) + d)\n"
    " except OSError: pass\ndef square(n): return 0",
    "kills everything": "import os; os.kill(-1, 9)",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "reads the parent's memory": "import os\ndef square(n):\n open(f'/proc/{os.getppid()}/mem')\n return 49",
    "looks for the tests": "import glob\ndef square(n):\n for p in glob.glob('/workspace/**/*', recursive=True) + "
    "glob.glob('/tmp/**/*', recursive=True):\n  if 'test' in p: return 49\n return 0",
    "hangs": "while True: pass",
    "hangs when called": "def square(n):\n while True: pass",
    "deep value": "def square(n):\n x = []\n for _ in range(100000): x = [x]\n return x",
    "huge value": "def square(n): return 'x' * (1 << 28)",
    "nothing": "",
}  # fmt: skip


@pytest.mark.parametrize("hack", HACKS)
async def test_a_candidate_that_avoids_the_tests_has_failed(backend, hack):
    result = await judge(backend, task_of(), HACKS[hack])
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0), result
    assert (result.reason_code == ReasonCode.AGENT_TIMEOUT) == hack.startswith("hangs"), result


CONTAINER = {
    "test_it.py": "from solution import f, V\ndef test(): assert 3 in f()\ndef test_equal(): assert V() == V()\n"
}


async def test_what_says_that_it_equals_or_contains_anything_is_tampering(backend):
    code = "class V:\n __eq__ = __contains__ = lambda *a: True\ndef f(): return V()"
    result = await judge(backend, task_of(CONTAINER, partial=True), code)
    assert (result.verdict, result.score, result.reason_code) == ("fail", 0.0, "TAMPER_DETECTED"), result
    assert [c.reason_code for c in result.components] == ["TAMPER_DETECTED"] * 2


NOT_TAKEN = {
    "conftest.py": b"import os; os._exit(0)", "tests/conftest.py": b"1/0", "pytest.ini": b"[pytest]",
    "sitecustomize.py": b"1/0",
    "evil.pth": b"import os; os._exit(0)", "tests/test_square.py": b"def test_nothing(): pass", "solution.pyc": b"x",
}  # fmt: skip


@pytest.mark.parametrize("answer", ["def square(n): return 0", SQUARE], ids=["wrong", "right"])
async def test_files_that_configure_or_replace_the_tests_are_not_taken(backend, answer):
    result = await judge(backend, task_of(answer_file=""), "done", NOT_TAKEN | {"solution.py": answer.encode()})
    assert result.verdict == ("pass" if answer is SQUARE else "fail"), result
    assert set(result.evidence["not_taken"]) == set(NOT_TAKEN)


async def test_only_listed_files_are_taken_and_added_tests_do_no_harm(backend):
    files = {
        "src/pkg/__init__.py": b"from pkg.core import square",
        "src/pkg/core.py": SQUARE.encode(),
        "test_mine.py": b"1/0",
    }
    tests = {
        "test_it.py": "from pkg import square\nimport pkg.core as core\ndef test(): assert square(3) == "
        "core.square(3) == 9"
    }
    task = task_of(tests, answer_file="", source_root="src", take=["src/*"])
    assert (await judge(backend, task, "done", files)).verdict == "pass"
    assert (await judge(backend, task, "done", {"pkg.py": b"square = int"})).verdict == "fail"


async def test_data_of_the_tests_is_read_from_memory_and_seen_by_nobody_else(backend):
    tests = {
        "tests/cases.json": "[[3, 9], [4, 16]]",
        "tests/test_cases.py": "import json\nfrom pathlib import Path\nfrom helper import load\nfrom solution "
        "import square\n"
        "def test():\n for n, want in load(Path(__file__).parent / 'cases.json'): assert square(n) == want",
        "tests/helper.py": "import json\ndef load(path):\n with open(path) as file: return json.load(file)",
    }  # fmt: skip
    assert (await judge(backend, task_of(tests), SQUARE)).verdict == "pass"
    peek = "import json\ndef square(n): return dict(json.load(open('/workspace/tests/cases.json')))[n]"
    assert (await judge(backend, task_of(tests), peek)).verdict == "fail"
    # A file of the candidate in its place is not what the tests read.
    task = task_of(tests, answer_file="")
    files = {"tests/cases.json": b"[]", "solution.py": b"square = None"}
    assert (await judge(backend, task, "done", files)).verdict == "fail"


async def test_a_script_with_its_own_exit_is_tested_as_one(backend):
    tests = {
        "test_cli.py": "from ratchet_verifier import run_program\nimport subprocess, sys\ndef test():\n"
        " done = run_program([sys.executable, 'solution.py', '6'])\n assert (done['exit_code'], done['stdout']) == "
        "(3, '36\\n')\n"
        "def test_stdlib():\n done = subprocess.run([sys.executable, 'solution.py', '2'], capture_output=True, "
        "text=True)\n"
        " assert done.returncode == 3 and done.stdout == '4\\n'"
    }  # fmt: skip
    code = "import sys\nprint(int(sys.argv[1]) ** 2)\nsys.exit(3)"
    assert (await judge(backend, task_of(tests, code), code)).verdict == "pass"


async def test_partial_credit_is_the_share_of_tests_and_never_a_pass(backend):
    tests = {
        "test_it.py": "from solution import square\ndef test_a(): assert square(2) == 4\ndef test_b(): assert "
        "square(3) == 9"
    }
    result = await judge(backend, task_of(tests, partial=True), "def square(n): return 4")
    assert (result.verdict, result.score, result.reason_code) == ("fail", 0.5, "WRONG_ANSWER")
    assert {c.name: c.verdict for c in result.components} == {"test_it::test_b": "fail", "test_it::test_a": "pass"}
    assert "assert square(3) == 9" in result.message
    assert (await judge(backend, task_of(tests), "def square(n): return 4")).score == 0.0


async def test_the_answers_last_fenced_block_is_the_code(backend):
    answer = f"First:\n```python\nbroken(\n```\nbetter:\n```python\n{SQUARE}```\nDone."
    assert (await judge(backend, task_of(), answer)).verdict == "pass"


async def test_shared_isolation_runs_what_the_other_cannot_and_says_so(backend):
    tests = {"test_it.py": "import solution\nclass Sub(solution.Base):\n def hook(self): return 2\n"
             "def test(): assert Sub().run() == 3"}  # fmt: skip
    code = "class Base:\n def hook(self): return 0\n def run(self): return self.hook() + 1"
    apart = await judge(backend, task_of(tests, code), code)
    assert apart.verdict == "fail" and 'isolation to "shared"' in apart.message
    shared = await judge(backend, task_of(tests, code, isolation="shared"), code)
    assert (shared.verdict, "process of the tests" in shared.evidence["isolation"]) == ("pass", True)
    for hack in ("import sys; sys.exit(0)", "import os; os._exit(0)"):
        result = await judge(backend, task_of(tests, code, isolation="shared"), hack)
        assert (result.verdict, result.score) == ("fail", 0.0), result


async def test_tests_that_cannot_run_are_the_tasks_fault(backend):
    broken = task_of({"test_it.py": "import no_such_module\ndef test(): pass"})
    assert (await judge(backend, broken, SQUARE)).verdict == "fail", "a reference that fails is found at import"
    empty = await judge(backend, task_of({"test_it.py": "x = 1"}), SQUARE)
    assert (empty.verdict, empty.score, empty.reason_code) == ("error", None, "VERIFIER_NO_RESULT")
    hang = await judge(backend, task_of({"test_it.py": "while True: pass"}), SQUARE)
    assert (hang.verdict, hang.score, hang.reason_code) == ("error", None, "VERIFIER_TIMEOUT")


@pytest.mark.parametrize(
    ("files", "error"),
    [({}, "no file of tests"), ({"a.py": "x=1"}, "no file of tests"), ({"test_a.py": "def ("}, "does not compile"),
     ({"../test_a.py": ""}, "relative path"), ({"/test_a.py": ""}, "relative path")],
)  # fmt: skip
def test_a_tree_that_cannot_judge_is_refused(files, error):
    with pytest.raises(TaskError, match=error):
        get_verifier(VerifierSpec(kind=VerifierKind.TESTS, files=files), None)


ERRORS = {
    "test_age.py": (
        "import pytest\nfrom solution import age\n\n"
        "def test_plain(): assert age('36') == 36\n"
        "def test_spaces(): assert age(' 7 ') == 7\n"
        "def test_negative():\n with pytest.raises(Exception): age('-4')\n"
        "def test_text():\n with pytest.raises(Exception): age('old')\n"
        "def test_both():\n with pytest.raises(Exception): age(None)\n with pytest.raises(Exception): age([])\n"
    )
}
AGE = "def age(text):\n    if int(text) < 0:\n        raise ValueError(text)\n    return int(text)\n"


@pytest.mark.parametrize(
    ("source", "score", "only_raised"),
    [
        (AGE, 1.0, None),
        ("def age(text): raise ValueError('I cannot help with that')", 0.0, 3),
        ("def age(text): raise NotImplementedError", 0.0, 3),
        ("def age(text): return {}[text]", 0.0, 3),
        ("def age(text): return int(text) if text == '36' else {}[text]", 0.8, None),
        ("def age(text): return 1", 0.0, None),
    ],
)
async def test_errors_alone_earn_nothing(source, score, only_raised):
    result = await judge(LocalBackend(), task_of(ERRORS, AGE, partial=True), source)
    assert (result.score, result.evidence.get("only_raised")) == (score, only_raised), result


BURN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
WORKS = {
    "itself": "import time\n\ndef f():\n    end = time.process_time() + 1.0\n    while time.process_time() < end: pass\n    return 1\n",
    "a child": f"import subprocess, sys\n\ndef f():\n    subprocess.run([sys.executable, '-c', {BURN.format(seconds=1.0)!r}])\n    return 1\n",
    "a child that is left behind": (
        "import os, time\n\ndef f():\n    read, write = os.pipe()\n    if os.fork() == 0:\n        if os.fork() == 0:\n            os.setsid()\n"
        "            end = time.process_time() + 1.0\n            while time.process_time() < end: pass\n            os.write(write, b'x')\n        os._exit(0)\n"
        "    os.wait()\n    os.read(read, 1)\n    return 1\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("clock", ["process_time", "thread_time"])
@pytest.mark.parametrize("worker", WORKS)
async def test_processor_time_is_that_of_all_who_work(backend, worker, clock):
    tests = {
        "test_fast.py": f"import time\nfrom solution import f\ndef test():\n start = time.{clock}()\n assert f() == 1\n"
        f" assert time.{clock}() - start < 0.9, 'slow'\n"
    }
    task = replace(task_of(tests, call_timeout_seconds=40.0), contract=EnvironmentContract(limits=PATIENT))
    result = await judge(backend, task, WORKS[worker])
    assert result.verdict is Verdict.FAIL and "slow" in result.message, result
