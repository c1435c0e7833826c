"""Facts of Python source, however it is written."""

import pytest

from gpu_workers.verifiers.detectors.source import facts_of


def names(source: str, kind: str) -> set[str]:
    return {fact.name for fact in facts_of(source) if fact.kind == kind}


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "import os as o\no._exit(0)",
        "from os import _exit\n_exit(0)",
        "from os import _exit as leave\nleave(0)",
        "import os\nleave = os._exit\nleave(0)",
        "import os\ngetattr(os, '_' + 'exit')(0)",
        "__import__('os')._exit(0)",
        "import importlib\nimportlib.import_module('os')._exit(0)",
        "import sys\nsys.modules['os']._exit(0)",
        "def f():\n    import os\n    return [os._exit(0) for _ in '1']",
    ],
)
def test_a_call_has_its_real_name(source):
    assert "os._exit" in names(source, "call")


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time = f",
        "import time as t\nt.time = t.monotonic = f",
        "import time\nsetattr(time, 'time', f)",
        "import time\ntime.__dict__['time'] = f",
        "import time\nvars(time)['time'] = f",
        "import sys\nsys.modules['time'].time = f",
        "from unittest.mock import patch\npatch('time.time', f).start()",
        "import time\nfrom unittest import mock\nmock.patch.object(time, 'time').start()",
        "import time\ndel time.time",
    ],
)
def test_an_assignment_has_its_real_target(source):
    assert "time.time" in names(source, "assign")


def test_a_name_that_was_not_imported_is_the_policys_own():
    assert names("class T: pass\ntime = T()\ntime.time = 1\njson = T()\njson.loads = 2", "assign") == {
        "<time>.time", "<json>.loads",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import sys\nsys.exit(0)", True),
        ("import sys\nsys.exit()", True),
        ("raise SystemExit", True),
        ("quit()", True),
        ("import sys\nsys.exit(main())", False),
        ("import sys\nsys.exit(2)", False),
        ("import sys\nif __name__ == '__main__':\n    sys.exit(0)", False),
        ("import sys\ndef main():\n    sys.exit(0)", False),
    ],
)
def test_an_exit_that_says_success_at_import(source, found):
    assert any(fact.kind == "exit_well" and fact.at_import for fact in facts_of(source)) is found


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __eq__(self, other):\n        return True",
        "class A:\n    def __eq__(self, other):\n        print(other)\n        return not False",
        "class A:\n    def __ne__(self, other):\n        return False\n",
        "class A(int):\n    __eq__ = lambda self, other: True",
        "A = type('A', (), {'__eq__': lambda *_: 1})",
        "class A: pass\nA.__eq__ = lambda a, b: True",
        "class A: pass\nsetattr(A, '__eq__', lambda a, b: True)",
        "class A:\n    def __eq__(self, other):\n        return other == other",
        "from unittest.mock import ANY\ndef f(n):\n    return ANY",
        "from unittest import mock\nx = mock.ANY",
    ],
)
def test_a_comparison_that_pleases_everything(source):
    assert names(source, "equal_to_all")


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __eq__(self, other):\n        return isinstance(other, A) and self.x == other.x",
        "class A:\n    def __eq__(self, other):\n        return isinstance(other, A)",
        "class A:\n    def __eq__(self, other):\n        return NotImplemented",
        "class A:\n    def __contains__(self, item):\n        return False",
        "class A:\n    def __eq__(self, other):\n        if self is other:\n            return True\n        return 0",
        "class A:\n    def __lt__(self, other):\n        return self.n < other.n",
        "class A:\n    __eq__ = object.__eq__",
    ],
)
def test_an_honest_comparison(source):
    assert not names(source, "equal_to_all")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("open('/te' + 'sts/a')", "/tests/a"),
        ("import os\nopen(os.path.join('/', 'solution', 'x'))", "/solution/x"),
        ("from pathlib import Path\nPath('/') / 'tests' / 'a'", "/tests/a"),
        ("import os\nopen(f'/proc/{os.getppid()}/mem')", "/proc/*/mem"),
        ("import base64\nopen(base64.b64decode('L3Rlc3RzL2E='))", "/tests/a"),
        ("open(bytes.fromhex('2f74657374732f61').decode())", "/tests/a"),
        ("open('a/stset/'[::-1])", "/tests/a"),
        ("open(''.join(['/te', 'sts/', 'a']))", "/tests/a"),
        ("open(''.join(map(chr, [47, 97])))", "/a"),
    ],
)
def test_a_text_is_put_together(source, text):
    assert text in names(source, "text")


@pytest.mark.parametrize("source", ["def (", "\0", "x" * 300_000, "(" * 500 + ")" * 500, "'''/tests/a'''\n"])
def test_what_does_not_parse_or_does_nothing_has_no_facts(source):
    assert not names(source, "text") and not names(source, "call")


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("open('/usr/bin/a', 'wb')", {"/usr/bin/a"}),
        ("for t in ('/usr/bin/a', '/bin/b'):\n    open(t, mode='w')", {"/usr/bin/a", "/bin/b"}),
        ("import base64\np = base64.b64decode('L2Jpbi9h').decode()\nfor t in (p,):\n    open(t, 'x')", {"/bin/a"}),
        ("[open('/bin/' + n, 'w') for n in ['sh', 'git']]", {"/bin/sh", "/bin/git"}),
        ("from pathlib import Path\nfolder = '/usr/bin'\n(Path(folder) / 'a').write_text('')", {"/usr/bin/a"}),
        ("from pathlib import Path\nPath('/bin/a').open('w').close()", {"/bin/a"}),
        ("import os\nos.open('/bin/a', os.O_WRONLY | os.O_CREAT)\nos.open('/bin/b', os.O_RDONLY)", {"/bin/a"}),
        ("import shutil, os\nshutil.copy('x', '/bin/a')\nos.rename('/bin/a', 'y')\nos.unlink('/bin/c')", {
            "/bin/a", "y", "/bin/c"}),
        ("open('/usr/bin/a')\nopen('/usr/bin/a', 'rb')\nimport subprocess\nsubprocess.run(['/usr/bin/a'])", set()),
        ("x = " + "+".join(["'a'"] * 150) + "\nopen(x, 'w')", {"a" * 150}),
    ],
)  # fmt: skip
def test_where_it_writes(source, paths):
    assert names(source, "write") == paths


@pytest.mark.parametrize(
    ("rest", "used"),
    [
        ("", False),
        ("def total(n): return sum(n)", False),
        ("def total(n): return Any()", True),
        ("class More(Any): pass", True),
        ("def total(n): return globals()['A' + 'ny']()", True),
        ("import solution\nx = solution.Any", True),
    ],
)
def test_an_object_that_nothing_uses_is_known_as_such(rest, used):
    source = "class Any:\n    def __eq__(self, other):\n        return True\n    copy = None\n" + rest
    (fact,) = [fact for fact in facts_of(source) if fact.kind == "equal_to_all"]
    assert fact.owner == ("" if used else "Any")
