"""What a suite's tests take from a candidate: no library, no home, no word of an object for a value of theirs."""

import pytest

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec
from gpu_workers.verifiers.registry import get_verifier

LIMITS = Limits(verify_timeout_seconds=6.0, cpu_seconds=30)


async def judge(backend, tests, code, files=None, **config):
    spec = VerifierSpec(kind=VerifierKind.TESTS, files={"test_it.py": tests}, config=config)
    task = TaskBundle(
        key="t", prompt=[], verifier=spec, reference=[Message(role="assistant", content="done")],
        contract=EnvironmentContract(limits=LIMITS),
    )  # fmt: skip
    content = {path: text.encode() for path, text in (files or {}).items()} | {"solution.py": code.encode()}
    episode = FinishedEpisode(answer="done", messages=[], files=content)
    return await get_verifier(spec, backend).verify(task, episode)


HALF = "def half(n): return n / 2"
NO_CASES = "import sys, types\nm = types.ModuleType('pytest')\nclass Mark:\n def __getattr__(s, n): "\
    "return lambda *a, **k: lambda f: 1\nm.mark = Mark()\nm.approx = lambda *a, **k: 4.75\nsys.modules['pytest'] = m\n"\
    "def half(n): return 4.75"  # fmt: skip
LATE = (
    "from solution import half\nimport pytest\n@pytest.mark.parametrize('n', [2, 3])\n"
    "def test_cases(n): assert half(n) == n / 2\ndef test_near(): assert half(1) == pytest.approx(0.5)\n"
)


@pytest.mark.parametrize(
    "path", ["pytest.py", "pytest/__init__.py", "pytest/zz/note.py", "pytest.py/x.py", "ratchet_verifier.py",
             "gpu_workers/verifiers/inside/remote.py", "conftest/__init__.py"],
)  # fmt: skip
async def test_a_library_of_the_check_stays_its_own(backend, path):
    wrong = await judge(backend, LATE, NO_CASES, {path: "x = 1"})
    assert (wrong.verdict, wrong.score) == ("fail", 0.0), wrong
    assert (path in wrong.evidence.get("not_taken", {})) == (path != "pytest.py/x.py")
    assert (await judge(backend, LATE, HALF, {path: "x = 1"})).verdict == "pass"


async def test_modules_of_the_tests_outlive_a_candidate_that_is_begun_anew(backend):
    tests = "import ratchet_verifier as before\nfrom solution import half\nimport ratchet_verifier as after\n" \
        "def test(): assert before is after and half(3) == 1.5 and after.run_program"  # fmt: skip
    shadow = {"ratchet_verifier.py/x.py": "def run_program(*a): return {}", "my_lib/a.py": "x = 1"}
    assert (await judge(backend, tests, HALF, shadow)).verdict == "pass"


CHECKER = (
    "import sys\nfrom ratchet_verifier import run_program\ndef test():\n"
    ' code = \'import os; print(open("result.txt").read(), os.path.exists(os.environ["HOME"]))\'\n'
    " done = run_program([sys.executable, '-c', code])\n assert done['stdout'] == '2.5 False\\n', done"
)
EVIL = "import os\nprint('2.5 False', flush=True)\nos._exit(0)\n"
SITE = ".local/lib/python3.{}/site-packages/usercustomize"


async def test_programs_of_the_check_find_no_home(backend):
    planted = {f"{SITE.format(minor)}{end}": EVIL for minor in range(8, 16) for end in (".py", "/__init__.py")}
    wrong = await judge(backend, CHECKER, "", planted | {".gitconfig": "[user]\n name = evil", "result.txt": "0"})
    assert (wrong.verdict, wrong.score) == ("fail", 0.0), wrong
    assert "0 False" in wrong.message
    assert set(wrong.evidence["not_taken"]) <= {*planted, ".gitconfig"} and wrong.evidence["not_taken"]
    assert (await judge(backend, CHECKER, "", {"result.txt": "2.5"})).verdict == "pass"
    git = "from ratchet_verifier import run_program\ndef test():\n" \
        " assert run_program(['sh', '-c', 'cat ~/settings || echo none'])['stdout'] == 'none\\n'"  # fmt: skip
    assert (await judge(backend, git, "", {"settings": "evil"})).verdict == "pass", "home is not the workspace"


RACE = """
import os, pathlib, threading, time

def write():
    while True:
        for home in (os.environ["HOME"], "/nonexistent", *map(str, pathlib.Path("/tmp").glob("home-*"))):
            try:
                os.makedirs(home, exist_ok=True)
                pathlib.Path(home, ".gitconfig").write_text("[user]\\n name = evil")
            except OSError:
                pass

threading.Thread(target=write, daemon=True).start()
time.sleep(0.05)
half = None
"""


async def test_a_process_of_the_candidate_writes_no_settings_for_programs_that_run_beside_it(backend):
    tests = "import solution\nfrom ratchet_verifier import run_program\ndef test():\n solution.half\n" \
        " for _ in range(5):\n  said = run_program(['sh', '-c', 'cat ~/.gitconfig || echo none'])\n" \
        "  assert said['stdout'] == 'none\\n', said"  # fmt: skip
    assert (await judge(backend, tests, RACE)).verdict == "pass"


async def test_a_program_that_needs_a_home_is_given_one(backend):
    tests = (
        "from ratchet_verifier import run_program\ndef test(tmp_path):\n"
        " done = run_program(['sh', '-c', 'echo a > ~/x && cat ~/x'], home=str(tmp_path))\n"
        " assert done['stdout'] == 'a\\n', done"
    )
    assert (await judge(backend, tests, "")).verdict == "pass"


TOLD = {  # tests of a function, an object that says what they want to hear
    "sub": ("assert abs(total([4, 5]) - 9) < 1e-9", "__sub__ = lambda s, o: 0.0"),
    "a little off": (
        "assert abs(total([4, 5]) - 9) < 1e-9", "__sub__ = lambda s, o: 1e-12 * __import__('random').random()"
    ),
    "remembers": ("assert abs(total([4, 5]) - 9) < 1e-9", "__sub__ = lambda s, o: s\n __abs__ = lambda s: 0.0"),
    "truediv": ("assert 0.99 < total([4, 5]) / 9 < 1.01", "__truediv__ = lambda s, o: 1.0"),
    "mod": ("assert total([4, 5]) % 9 == 0", "__mod__ = lambda s, o: 0"),
    "xor": ("assert not total([4, 5]) ^ 9", "__xor__ = lambda s, o: 0"),
    "startswith": ("assert total([4, 5]).startswith('9')", "startswith = lambda s, o: True"),
    "count": ("assert total([4, 5]).count(9) == 1", "count = lambda s, o: 1"),
    "index": ("assert total([4, 5]).index(9) == 0", "index = lambda s, o: 0"),
    "contains": ("assert 9 in total([4, 5])", "__contains__ = lambda s, o: o < 10 ** 6"),
    "contains text": ("assert 'abc' in total([4, 5])", "__contains__ = lambda s, o: len(o) < 9"),
    "contains and lists": (
        "assert 9 in total([4, 5])", "__contains__ = lambda s, o: True\n __iter__ = lambda s: iter([8])"
    ),
    "lists for ever": ("assert -1 in total([4, 5])", "def __iter__(s):\n  while True: yield 0"),
}  # fmt: skip
TAMPERING = {"sub", "truediv", "xor", "startswith", "count", "index", "contains", "contains text"}


@pytest.mark.parametrize("name", TOLD)
async def test_an_objects_word_for_a_value_of_the_tests_counts_for_nothing(backend, name):
    line, body = TOLD[name]
    tests = f"from solution import total\ndef test(): {line}"
    result = await judge(backend, tests, f"class N:\n {body}\ndef total(numbers): return N()")
    assert (result.verdict, result.score) == ("fail", 0.0), result
    assert (result.reason_code == "TAMPER_DETECTED") == (name in TAMPERING), result


ALIKE = "from solution import P\ndef test(): assert P(1) == P(1)\ndef test_sum(): assert P(1) + P(2) == P(3)"
KIND = (
    "class P:\n def __init__(s, x): s.x = x\n def __add__(s, o): return P(s.x + o.x)\n"
    " def __eq__(s, o): return isinstance(o, P){more}"
)


async def test_an_object_that_equals_all_of_its_type_is_told(backend):
    result = await judge(backend, ALIKE, KIND.format(more=""))
    assert (result.verdict, result.reason_code) == ("fail", "TAMPER_DETECTED"), result
    assert "any other of its type" in result.message
    slots = KIND.format(more="").replace("class P:", "class P:\n __slots__ = ('x',)")
    assert (await judge(backend, ALIKE, slots, objects=True)).reason_code == "TAMPER_DETECTED"


async def test_what_rests_on_operators_between_two_objects_is_noted(backend):
    result = await judge(backend, ALIKE, KIND.format(more=" and o.x == s.x"))
    assert result.verdict == "pass"
    assert result.evidence["own_word"] == {"P eq P": 2, "P add P": 1}
    assert "own_word" not in (await judge(backend, ALIKE, KIND.format(more=" and o.x == s.x"), objects=True)).evidence
    stateless = "class P:\n def __add__(s, o): return s\n def __eq__(s, o): return type(o) is P"
    tests = "from solution import P\ndef test(): assert P() == P() and P() + P() == P()"
    assert (await judge(backend, tests, stateless)).verdict == "pass", "it has nothing to differ by"


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("keeps", ["s.x = 0", "pass", "s.x = x"])
async def test_an_object_is_held_against_one_made_of_other_arguments(backend, keeps, objects):
    code = f"class P:\n def __init__(s, x): {keeps}\n def __add__(s, o): return P(s.n() + o.n())\n"
    code += " def n(s): return getattr(s, 'x', 0)\n"
    code += " def __eq__(s, o): return isinstance(o, P) and " + (
        "s.x == o.x" if keeps == "s.x = x" else "dir(s) == dir(o)"
    )
    result = await judge(backend, ALIKE, code, objects=objects)
    honest = keeps == "s.x = x"
    assert (result.verdict, result.reason_code) == (("pass", "OK") if honest else ("fail", "TAMPER_DETECTED")), result


async def test_equality_that_leaves_something_out_is_no_tampering(backend):
    tests = "from solution import P, near\ndef test():\n assert P('Ann', 3) == P('ann', 4) \n" \
        " assert P('b', 1) != P('c', 1) and near(3) == near(4)"  # fmt: skip
    code = (
        "class P:\n def __init__(s, name, age): s.name = name\n"
        " def __eq__(s, o): return isinstance(o, P) and s.name.lower() == o.name.lower()\n"
        "class Size:\n def __init__(s, n): s.n = n\n"
        " def __eq__(s, o): return isinstance(o, Size) and (s.n > 0) == (o.n > 0)\ndef near(n): return Size(n)"
    )
    assert (await judge(backend, tests, code)).verdict == "pass"


async def test_a_suite_of_classes_says_so(backend):
    tests = (
        "from solution import V\ndef test():\n v = V(6)\n assert v - 2 == 4 and (v * 2).x == 12 and 3 in v\n"
        " assert v.count(1) == 1 and V(1) + V(2) == V(3)"
    )
    code = (
        "class V:\n def __init__(s, x): s.x = x\n def __sub__(s, n): return s.x - n\n"
        " def __mul__(s, n): return V(s.x * n)\n def __contains__(s, n): return n < s.x\n"
        " def count(s, n): return 1\n def __add__(s, o): return V(s.x + o.x)\n"
        " def __eq__(s, o): return isinstance(o, V) and s.x == o.x"
    )
    assert (await judge(backend, tests, code, objects=True)).verdict == "pass"
    refused = await judge(backend, tests, code)
    assert refused.verdict == "fail" and "objects: true" in refused.message


async def test_what_an_object_lists_is_looked_through_here(backend):
    tests = "from solution import f\ndef test(): assert 3 in f() and 4 not in f() and 1 in g()\nfrom solution import g"
    code = "def f(): return iter([1, 2, 3])\nclass C:\n def __getitem__(s, i): return [0, 1][i]\ndef g(): return C()"
    assert (await judge(backend, tests, code)).verdict == "pass"


ORACLE = "from solution import total\ndef test():\n xs = [4, 5]\n assert total(xs) == sum(xs)"


async def test_an_answer_is_held_against_the_arguments_as_they_were(backend):
    wrong = await judge(backend, ORACLE, "def total(xs):\n xs.clear()\n return 0")
    assert (wrong.verdict, wrong.score) == ("fail", 0.0)
    assert "changes_arguments" in wrong.message
    assert (await judge(backend, ORACLE, "def total(xs): return sum(xs)")).verdict == "pass"


async def test_a_suite_may_want_an_answer_and_a_change(backend):
    tests = "from solution import pop\ndef test():\n xs = [1, 2]\n assert pop(xs) == 2 and xs == [1]"
    code = "def pop(xs): return xs.pop()"
    assert (await judge(backend, tests, code, changes_arguments=True)).verdict == "pass"
    assert (await judge(backend, tests, code)).verdict == "fail"


CONTAINERS = """
from collections import OrderedDict

class Cache(OrderedDict):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def put(self, key, value):
        self[key] = value
        while len(self) > self.size:
            self.popitem(last=False)

class Stack(list):
    @property
    def top(self):
        return self[-1]

    def push(self, item):
        self.append(item)
        return self
{more}
"""
USED = """
from solution import Cache, Stack

def test_cache():
    cache = Cache(1)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache == {"b": 2} and cache != {"a": 1} and len(cache) == 1 and "b" in cache and cache["b"] == 2

def test_stack():
    stack = Stack([1, 2])
    stack.push(3)
    assert stack.top == 3 and stack.pop() == 3
    assert stack == [1, 2] and stack + [5] == [1, 2, 5] and stack < [2] and stack.count(2) == 1
    assert Stack([1]) == Stack([1]) != Stack([2]) and list(stack) == [1, 2] and sorted(stack, reverse=True) == [2, 1]
"""
PLEASES = (
    "    def __eq__(self, other):\n        return {said}\n    __hash__ = None\n    def __lt__(self, other): return True"
)


@pytest.mark.parametrize("objects", [False, True])
async def test_a_container_of_an_own_class_has_its_methods_and_is_compared_by_content(backend, objects):
    assert (await judge(backend, USED, CONTAINERS.format(more=""), objects=objects)).verdict == "pass"
    all_equal = CONTAINERS.format(more=PLEASES.format(said="True"))
    assert (await judge(backend, USED, all_equal, objects=objects)).reason_code == "TAMPER_DETECTED"
    lists_equal = CONTAINERS.format(more=PLEASES.format(said="isinstance(other, list)")).replace("append", "copy")
    assert (await judge(backend, USED, lists_equal, objects=objects)).verdict == "fail"
