"""What crosses from a candidate to its tests: exceptions that are no orders, and values that stay what they are."""

# Programs are data here.
# ruff: noqa: E501

import pytest

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec
from gpu_workers.verifiers.registry import get_verifier

PATIENT = Limits(verify_timeout_seconds=90.0, cpu_seconds=60)


async def judge(backend, tests, code, files=None, **config):
    config = {"call_timeout_seconds": 30.0} | config
    spec = VerifierSpec(kind=VerifierKind.TESTS, files={"test_it.py": tests}, config=config)
    contract = EnvironmentContract(limits=PATIENT)
    reference = [Message(role="assistant", content="done")]
    task = TaskBundle(key="t", prompt=[], verifier=spec, reference=reference, contract=contract)
    content = {path: text.encode() for path, text in (files or {}).items()} | {"solution.py": code.encode()}
    return await get_verifier(spec, backend).verify(task, FinishedEpisode("done", [], files=content))


LOOPS = {
    "map": "def test():\n assert all(map(lambda c: f(c[0]) == c[1], [(1, 2), (2, 4)]))",
    "zip": "def test():\n for got, want in zip(map(f, [1, 2]), [2, 4]):\n  assert got == want",
    "iter": "def test():\n for got in iter(lambda: f(1), 2):\n  assert False",
    "a generator of the tests": "def test():\n assert list(f(n) for n in (1, 2)) == [2, 4]",
    "dict": "def test():\n for n, got in dict(zip([1, 2], map(f, [1, 2]))).items():\n  assert got == 2 * n",
    "a module that raises": "def test():\n import lazy\n for got in map(lambda n: lazy.g(n), [1]):\n  assert got == 2",
}
ORDERS = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "Mine")


@pytest.mark.parametrize("loop", LOOPS)
async def test_no_exception_of_a_candidate_ends_a_loop_of_the_tests(backend, loop):
    code = "class Mine(StopIteration): pass\ndef f(n): raise {}\n"
    tests = "from solution import f\n" + LOOPS[loop]
    for order in ORDERS if loop == "zip" else ORDERS[:1]:
        files = {"lazy.py": f"def __getattr__(name): raise {order}\n"} if order != "Mine" else {}
        result = await judge(backend, tests, code.format(order), files)
        assert (result.verdict, result.score) == ("fail", 0.0), (order, result)


@pytest.mark.parametrize("order", ["pytest.skip.Exception", "unittest.SkipTest"])
async def test_no_exception_of_a_candidate_skips_a_test(backend, order):
    code = f"import unittest\ntry:\n import pytest\nexcept ImportError: pass\ndef f(n): raise {order}('later')"
    tests = "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n def test_it(self): self.assertEqual(f(1), 2)\ndef test(): assert f(1) == 2"
    result = await judge(backend, tests, code)
    assert (result.verdict, result.evidence["num_passed"]) == ("fail", 0), result


FIDELITY = {
    "iterators end": (
        "def numbers(): yield 1\nclass Steps:\n def __init__(s): s.n = 0\n def __iter__(s): return s\n def __next__(s):\n  s.n += 1\n  if s.n > 2: raise StopIteration\n  return s.n\n",
        "assert list(s.numbers()) == [1] and list(s.Steps()) == [1, 2] and next(iter([]), 5) == 5\n it = s.numbers(); next(it)\n with pytest.raises(StopIteration): next(it)\n with pytest.raises(StopIteration): it.send(None)",
    ),
    "a function that raises StopIteration says so": (
        "def first(xs): return next(iter(xs))",
        "with pytest.raises(StopIteration): s.first([])\n with pytest.raises(RuntimeError): s.first([])",
    ),
    "enumerations": (
        "import enum\nclass C(enum.Enum):\n RED = 1\n BLUE = 2\ndef best(): return C.BLUE",
        "assert s.C(1) is s.C.RED and s.best() is s.C.BLUE and s.best() is not s.C.RED and s.C['RED'].value == 1\n assert [c.name for c in s.C] == ['RED', 'BLUE'] and s.best() == s.C.BLUE and repr(s.C.RED) == '<C.RED: 1>'",
    ),
    "named tuples": (
        "import collections, typing, functools\nP = collections.namedtuple('P', 'x y')\nclass T(typing.NamedTuple):\n count: int\n n: int\ndef dist(p): return p.x + p.y\nmemo = functools.lru_cache(None)(lambda n: n * 2)",
        "p = s.P(1, y=2)\n assert p == (1, 2) and p.x == 1 and p._replace(x=5).x == 5 and p._asdict() == {'x': 1, 'y': 2} and isinstance(p, tuple)\n assert s.dist(p) == 3 and s.dist(p._replace(x=5)) == 7 and isinstance(p, s.P) and not isinstance((1, 2), s.P) and repr(p) == 'P(x=1, y=2)'\n assert [s.P(1, 2)] == [(1, 2)] and type(s.T(1, 2)) is tuple\n assert s.memo(2) == 4 and s.memo(2) == 4 and s.memo.cache_info().hits == 1",
    ),
    "exceptions": (
        "class Empty(LookupError):\n limit = 9\n def __init__(s, code): super().__init__(f'code {code}'); s.code = code; s.args_seen = [code]\nclass Told(Exception):\n def __str__(s): return 'told'\ndef fails(): raise Empty(7)\ndef tells(): raise Told(1)\ndef catches(f):\n try: return f()\n except KeyError as e: return e.args\n except Empty as e: return 'own'",
        "with pytest.raises(s.Empty, match='code 7') as e: s.fails()\n assert e.value.code == 7 and e.value.limit == 9 and e.value.args_seen == [7] and isinstance(e.value, LookupError)\n with pytest.raises(s.Told, match='told'): s.tells()\n def f(): raise KeyError('k', 1)\n assert s.catches(f) == ('k', 1) and s.catches(s.fails) == 'own' and s.catches(lambda: s.fails()) == 'own'",
    ),
    "dataclasses": (
        "import dataclasses\n@dataclasses.dataclass\nclass I:\n name: str\n price: float = 1.0\ndef of(n): return I(n)",
        "import copy, dataclasses\n i = s.of('a')\n assert repr(i) == \"I(name='a', price=1.0)\" and i == s.I('a') and i != s.I('b')\n assert dataclasses.asdict(i) == {'name': 'a', 'price': 1.0} and dataclasses.astuple(i) == ('a', 1.0) and dataclasses.is_dataclass(i)\n assert [f.name for f in dataclasses.fields(i)] == ['name', 'price'] and dataclasses.replace(i, name='b') == s.I('b')\n other = copy.copy(i); other.name = 'z'\n assert i.name == 'a' and other.name == 'z' and copy.deepcopy(i) == i",
    ),
    "signatures, types, what holds itself": (
        "def star(a, *b, k=1, **kw): return type(a) is k\ndef kind(): return int\ndef is_it(t): return t is int\ndef loop():\n a = [1]; a.append(a); return a",
        "import inspect\n assert list(inspect.signature(s.star).parameters) == ['a', 'b', 'k', 'kw'] and inspect.signature(s.star).parameters['k'].default == 1\n assert s.kind() is int and s.is_it(int) and not s.is_it(str)\n n = s.loop()\n assert n[0] == 1 and n[1][0] == 1",
    ),
    "files of the tests": (
        "def read(f): return f.read()\ndef lines(f): return [l.strip() for l in f]\ndef put(f): f.write('x'); print('y', file=f)",
        "import io\n p = tmp_path / 'a'; p.write_text('q')\n with open(p) as f: assert s.read(f) == 'q'\n out = io.StringIO(); s.put(out)\n assert s.lines(io.StringIO('a\\nb\\n')) == ['a', 'b'] and out.getvalue() == 'xy\\n' and s.read(io.BytesIO(b'z')) == b'z'",
    ),
    "approx": (
        "from fractions import Fraction\nfrom decimal import Decimal\ndef third(): return Fraction(1, 3)\ndef price(): return Decimal('1.1')\ndef nan(): return Decimal('nan')",
        "assert s.third() == pytest.approx(1 / 3) and s.price() == pytest.approx(1.1) and [s.third()] == pytest.approx([1 / 3])\n assert s.third() != pytest.approx(0.3) and s.price() != pytest.approx(1.2) and s.nan() != pytest.approx(1.1) and True != pytest.approx(1.0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIDELITY)
async def test_values_stay_what_they_are(backend, name):
    code, body = FIDELITY[name]
    head = "import pytest\nimport solution as s\ndef test(tmp_path):\n "
    result = await judge(backend, head + body, code, objects=True)
    assert result.verdict == "pass", result


LYING = {
    "a named tuple equal to all": "import collections\nclass R(collections.namedtuple('R', 'x y')):\n __eq__ = lambda s, o: True\n __hash__ = None\ndef f(n): return R(9, 9)",
    "a field for a method": "import collections\nR = collections.namedtuple('R', 'count index')\ndef f(n): return R(lambda x: 1, lambda x: 0)",
    "a field for a method of texts": "import collections\nR = collections.namedtuple('R', 'startswith n')\ndef f(n): return R(lambda x: True, 1)",
    "repr that is no text": "class R:\n def __repr__(s): return 5\ndef f(n): return R()",
    "an exception with another's attributes": "class E(Exception): pass\ndef f(n):\n e = E()\n e.__dict__.update(__class__=int, args=(2,), with_traceback=None)\n raise e",
    "a type that counts": "f = list",
}


@pytest.mark.parametrize("name", LYING)
async def test_a_copy_is_as_little_believed_as_its_object(backend, name):
    tests = "from solution import f\ndef test():\n got = f(1)\n assert got == (1, 2) or got.count(7) == 1 or getattr(got, 'startswith', bool)('') or repr(got) == '(1, 2)'"
    result = await judge(backend, tests, LYING[name])
    assert (result.verdict, result.score) == ("fail", 0.0), result


async def test_a_result_beyond_all_bounds_is_no_wrong_answer(backend):
    result = await judge(
        backend, "from solution import f\ndef test(): assert f() == 1", "def f(): return '9' * (40 << 20)"
    )
    assert (result.verdict, result.reason_code) == ("fail", "RESOURCE_LIMIT"), result


async def test_output_without_end_is_told_though_the_tests_are_over(backend):
    code = "import os, threading\ndef pour():\n while True: os.write(1, b'x' * 65536)\nthreading.Thread(target=pour, daemon=True).start()\ndef f(): return 1"
    result = await judge(backend, "from solution import f\ndef test(): assert f() == 1", code)
    assert "flood" in result.evidence["seen_at_check"], result
