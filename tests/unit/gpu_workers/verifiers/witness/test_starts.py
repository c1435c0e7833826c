"""Python behind the witness is Python: the same output and exit codes, whatever it is started with."""

# Programs are data here.
# ruff: noqa: E501

import re

import pytest
from msgspec.structs import replace

from gpu_workers.contracts.environment import EnvironmentContract
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.verifiers.witness.programs import witness_programs
from gpu_workers.verifiers.witness.wrapper import UNSOUND, Start

FILES = {
    "tests/ok.py": "import sys\nprint(__name__, __file__, sys.argv, sys.path[0], __spec__, sys.flags.optimize)\n",
    "tests/helper.py": "VALUE = 7\n",
    "tests/imports.py": "import helper\nprint(helper.VALUE)\n",
    "tests/exits.py": "import sys\nprint('x')\nsys.exit(int(sys.argv[1]))\n",
    "tests/says.py": "import sys\nsys.exit('a reason')\n",
    "tests/main.py": "import sys\ndef main():\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())\n",
    "tests/quits.py": "exit()\n",
    "tests/raises.py": "def f():\n    raise KeyError('k')\nf()\n",
    "tests/syntax.py": "def f(:\n",
    "tests/late.py": "import atexit\natexit.register(print, 'late')\nprint('early')\n",
    "tests/thread.py": "import threading\nthreading.Timer(0.05, print, ['thread']).start()\n",
    "tests/reads.py": "import sys\nprint(sys.stdin.read().upper())\n",
    "tests/term.py": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "tests/asserts.py": "assert False\nprint('on')\n",
    "tests/forks.py": "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nprint('twice')\n",
    "tests/spawn.py": (
        "import multiprocessing\n\ndef double(n):\n    return 2 * n\n\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n        print(pool.map(double, [1, 2]))\n"
    ),
    "tests/pickles.py": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)\n",
    "tests/nested.py": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1); raise SystemExit(3)']).returncode)\n"
    ),
    "tests/test_unit.py": "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\n",
    "tests/package/__main__.py": "import sys\nprint(__package__, sys.argv[1:])\n",
    "tests/package/__init__.py": "",
    "app/tool.py": "import sys\nprint(sys.argv[1:], sys.executable)\nsys.exit(0)\n",
    "app/gone.py": "import os\nos._exit(0)\n",
}  # fmt: skip
SAME = (
    "python3 tests/ok.py a 'b c' -c", "python3 -O tests/ok.py", "python3 -OO -u tests/ok.py", "python3 -I tests/ok.py x",
    "python3 -E -s -B -W error -Xutf8 tests/ok.py", "python3 -- tests/ok.py", "python3 /tests/imports.py",
    "python3 tests/exits.py 0", "python3 tests/exits.py 3", "python3 tests/exits.py 256", "python3 tests/says.py",
    "python3 tests/main.py", "python3 tests/quits.py", "python3 tests/raises.py", "python3 tests/syntax.py",
    "python3 tests/missing.py", "python3 tests/late.py", "python3 tests/thread.py", "echo in | python3 tests/reads.py",
    "python3 tests/term.py", "python3 tests/asserts.py", "python3 -O tests/asserts.py", "python3 tests/forks.py", "python3 tests/spawn.py",
    "python3 tests/pickles.py", "python3 tests/nested.py", "python3 -m unittest -q tests.test_unit",
    "cd tests && python3 -m unittest -q test_unit", "cd tests && python3 -m package a", "python3 tests/package b",
    "python3 -m json.tool <<< '[1]'", "python3 -m nothing.like.it", "python3 -c 'import sys; print(sys.argv, sys.path[0])' a b",
    "python3 -c 'import sys; sys.exit(0)'", "python3 -Ic 'import sys; print(sys.argv)' -x", "python3 -c '1/0'",
    "python3 - a <<< 'import sys; print(sys.argv, __name__)'", "python3 <<< 'print(2)'", "python3 -V", "python3 --version",
    "python3 --nonsense", "python3 -c", "python3 app/tool.py y", "python3 app/gone.py",
    "timeout -s KILL 0.2 python3 -c 'import time; time.sleep(60)'", "timeout 0.2 python3 -c 'import time; time.sleep(60)'",
    "python3 -c 'import venv, sys; print(sys.prefix, sys._base_executable)'",
)  # fmt: skip
GONE = {
    "_exit": "import os; os._exit(0)",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "from C": "import ctypes; ctypes.CDLL(None).exit(0)",
    "handler": "import atexit, os; atexit.register(os._exit, 0); raise ValueError",
    "hook": "import sys, os; sys.excepthook = lambda *_: os._exit(0); raise ValueError",
    "a child goes on": "import os\nif os.fork(): os._exit(0)",
    "made up code": "exec(compile('raise SystemExit(0)', '/tests/ok.py', 'exec'))",
    "patches": (
        "import os, posixpath, builtins, sys\nposixpath.realpath = os.path.realpath = lambda path, **_: '/elsewhere'\n"
        "builtins.isinstance = lambda *_: False\nframe = sys._getframe()\nwhile frame.f_back:\n    frame = frame.f_back\n"
        "frame.f_globals.update(by_check=lambda *_: True, code_of=lambda *_: 0)\nsys.exit(0)"
    ),
    "a traceback of its own": (
        "import sys\nclass Own(SystemExit):\n    @property\n    def __traceback__(self): return None\n"
        "    @__traceback__.setter\n    def __traceback__(self, value): pass\nraise Own(0)"
    ),
    "a profile": (
        "import os, sys\ndef look(frame, event, arg):\n    if 'say' in frame.f_locals:\n"
        "        frame.f_locals['say'](b'0')\n        os._exit(0)\nsys.setprofile(look)"
    ),
    "a trace": (
        "import os, sys\ndef look(frame, event, arg):\n    found = frame.f_locals.get('say') or frame.f_locals.get('step')\n"
        "    if 'say' in frame.f_locals:\n        frame.f_locals['say'](b'0')\n        os._exit(0)\n    return look\nsys.settrace(look)"
    ),
    "run the handlers": "import atexit, os; atexit._run_exitfuncs(); os._exit(0)",
}  # fmt: skip
NAMES = re.compile(r"/usr/bin/|/witness/bin/| in \d+\.\d+s")  # before complaints of Python; a time


@pytest.fixture
async def sandbox():
    contract = replace(
        EnvironmentContract().for_verifier(), links={"/tests": "tests", "/app": "app"}, programs=witness_programs()
    )
    sandbox = BubblewrapBackend().create(contract)
    await sandbox.start()
    for path, text in FILES.items():
        await sandbox.write(path, text.encode())
    yield sandbox
    await sandbox.close()


async def test_what_starts_without_it_starts_the_same_with_it(sandbox):
    differences = []
    for line in SAME:
        with_it, without = [
            await sandbox.exec(["bash", "-c", f"PATH={path}$PATH; {line}"], timeout_seconds=60)
            for path in ("/witness/bin:", "")
        ]
        seen = [(done.exit_code, done.stdout, NAMES.sub("", done.stderr)) for done in (with_it, without)]
        if seen[0] != seen[1]:
            differences.append((line, *seen))
    assert not differences, "\n".join(map(str, differences))


@pytest.mark.parametrize("name", GONE)
async def test_a_check_that_does_not_come_to_its_end_gives_no_zero(sandbox, name):
    await sandbox.write("app/candidate.py", GONE[name].encode())
    await sandbox.write("tests/check.py", b"import sys; sys.path.insert(0, '/app'); import candidate; assert False")
    done = await sandbox.exec(["bash", "-c", "PATH=/witness/bin:$PATH; python3 /tests/check.py"], timeout_seconds=60)
    assert done.exit_code in (1, UNSOUND), done


async def test_nothing_inside_can_change_it(sandbox):
    done = await sandbox.exec(["bash", "-c", "echo > /witness/bin/python3; rm -f /witness/wrapper.py; ls /witness"])
    assert "bootstrap.py" in done.stdout and "wrapper.py" in done.stdout
    assert done.stderr.count("Read-only file system") == 2


@pytest.mark.parametrize(
    "words, kind, main, options",
    [
        (["-Bc", "x", "-c"], "text", "x", ["-B"]), (["-mpytest", "-q"], "module", "pytest", []),
        (["-W", "error", "-Xdev", "a.py"], "script", "a.py", ["-W", "error", "-X", "dev"]), ([], "stdin", "", []),
        (["--check-hash-based-pycs", "never", "a.py"], "script", "a.py", ["--check-hash-based-pycs", "never"]),
        (["-V"], "", "", []), (["-i", "a.py"], "", "", []), (["-"], "stdin", "-", []),
    ],
)  # fmt: skip
def test_a_command_line_is_read_as_python_reads_it(words, kind, main, options):
    start = Start(words)
    assert (start.kind, start.main, start.options) == (kind, main, options)
