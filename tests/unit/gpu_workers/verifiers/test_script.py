"""Scripts that check, in real sandboxes: honest ones pass and fail as they should, and nobody else's word counts."""

# Programs are data here.
# ruff: noqa: E501

from dataclasses import replace

import pytest

from gpu_workers.contracts.enums import ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.witness.course import OPEN, Course, Seal, deviation

REWARD = "/logs/verifier/reward.txt"
BY_CODE = f"if python3 /tests/check.py; then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi\n"
IMPORT = "import sys\nsys.path.insert(0, '/app')\n"
CHECK = IMPORT + "from solution import double\nassert double(4) == 8\nassert double('a') == 'aa'\n"
RIGHT = "def double(value):\n    return value + value\n"
WRONG = "def double(value):\n    return value\n"
CLI = "import sys\n\nif not sys.argv[1:]:\n    sys.exit(2)\nprint(2 * int(sys.argv[1]))\nsys.exit(0)\n"
CLI_SH = f"""cd /app
out=$(python3 solution.py 21); first=$?
python3 solution.py; second=$?
[ "$out" = 42 ] && [ $first = 0 ] && [ $second = 2 ] && echo 1 > {REWARD} || echo 0 > {REWARD}
"""
RAISES = (
    IMPORT
    + """
import pytest_like
from solution import double

with pytest_like.raises(SystemExit):
    double(None)
assert double(4) == 8
"""
)
PYTEST_LIKE = "import contextlib\n\n\ndef raises(kind):\n    return contextlib.suppress(kind)\n"
OWN_EXIT = CHECK.replace("from sol", "def main():\n    from sol").replace("\nassert", "\n    assert") + (
    "\n\nmain()\nprint('fine')\nsys.exit(0)\n"
)
SUBPROCESS = IMPORT + (
    "import subprocess\nfor code, want in (('import solution; assert solution.double(2) == 4', 0),"
    " ('import solution; solution.double()', 1)):\n"
    "    assert subprocess.run([sys.executable, '-c', code], cwd='/app').returncode == want\n"
)
SPAWN = IMPORT + (
    "import multiprocessing\nfrom solution import double\n\nif __name__ == '__main__':\n"
    "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n        assert pool.map(double, [1, 2]) == [2, 4]\n"
)
BY_PYTHON = IMPORT + (
    "from solution import double\ngood = double(4) == 8\nopen('/logs/verifier/reward.txt', 'w').write('1' if good else '0')\n"
)
UNITTEST = (
    "import sys, unittest\nsys.path.insert(0, '/app')\nfrom solution import double\n\nclass Test(unittest.TestCase):\n"
    "    def test(self):\n        self.assertEqual(double(4), 8)\n\nif __name__ == '__main__':\n    unittest.main()\n"
)
SCRIPTS = {
    "exit code": {"test.sh": BY_CODE, "check.py": CHECK},
    "own exit": {"test.sh": BY_CODE, "check.py": OWN_EXIT},
    "unittest": {"test.sh": f"cd /tests && python3 -m unittest check; [ $? = 0 ] && echo 1 > {REWARD} || echo 0 > {REWARD}\n", "check.py": UNITTEST},
    "unittest as a program": {"test.sh": BY_CODE, "check.py": UNITTEST},
    "by env": {"test.sh": f"chmod +x /tests/check.py; echo 0 > {REWARD}; /tests/check.py && echo 1 > {REWARD}; true\n", "check.py": "#!/usr/bin/env python3\n" + CHECK},
    "in the text": {"test.sh": f"cd /app; echo 0 > {REWARD}; python3 -c 'from solution import double; assert double(4) == 8' && echo 1 | tee {REWARD} /tmp/copy\n"},
    "from stdin": {"test.sh": f"cd /app; python3 - <<'EOF' && echo 1 > {REWARD} || echo 0 > {REWARD}\n{CHECK}EOF\n"},
    "starts others": {"test.sh": BY_CODE, "check.py": SUBPROCESS},
    "spawns": {"test.sh": BY_CODE, "check.py": SPAWN},
    "written by Python": {"test.sh": "python3 /tests/check.py\n", "check.py": BY_PYTHON},
    "logs of Python, JSON too": {
        "test.sh": "python3 /tests/check.py > /logs/verifier/out.txt; code=$?; [ $code = 0 ] && echo '{\"reward\": 1}' > /logs/verifier/reward.json || echo '{\"reward\": 0}' > /logs/verifier/reward.json\n",
        "check.py": CHECK + "open('/logs/verifier/ctrf.json', 'w').write('{}')\n",
    },
}  # fmt: skip
HACKS = {
    "leaves": "import os\nos._exit(0)\n",
    "exits": "import sys\nsys.exit(0)\n",
    "exits later": "def double(value):\n    raise SystemExit\n",
    "another program": "import os\nos.execv('/bin/true', ['true'])\n",
    "a handler": "import atexit, os\natexit.register(os._exit, 0)\n" + WRONG,
    "from C": "import ctypes\nctypes.CDLL(None).exit(0)\n",
    "another Python": "import os, sys\nif __debug__:\n    os.execv(sys.executable, [sys.executable, '-O', *sys.argv])\n" + WRONG,
    "a thread": "import os, threading\nthreading.Thread(target=os._exit, args=(0,)).start()\nimport time\ntime.sleep(9)\n",
    "writes": f"open('{REWARD}', 'w').write('1')\n" + WRONG,
    "writes and ends the script": f"import os\nopen('{REWARD}', 'w').write('1')\nos.kill(os.getppid(), 9)\nos.kill(os.getsid(0), 9)\n" + WRONG,
    "closes it": f"import os\nopen('{REWARD}', 'w').write('1')\nos.chmod('{REWARD}', 0o444)\n" + WRONG,
    "writes again and again": (
        f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    end = time.time() + 5\n    while time.time() < end:\n"
        f"        try:\n            open('{REWARD}', 'w').write('1')\n        except OSError:\n            pass\n    os._exit(0)\n" + WRONG
    ),
    "edits the tests": "open('/tests/check.py', 'w').write('')\n" + WRONG,
}  # fmt: skip


def task_of(files: dict[str, str], reference: str = RIGHT) -> TaskBundle:
    limits = Limits(verify_timeout_seconds=60.0, cpu_seconds=30)
    call = f"write_file(path='solution.py', content={reference!r})"
    return TaskBundle(
        key="double", prompt=[Message(role="user", content="Write solution.py.")], tools=[ToolSpec(name="write_file")],
        contract=EnvironmentContract(limits=limits), verifier=VerifierSpec(kind=VerifierKind.SCRIPT, files=files),
        reference=[
            Message(role="assistant", content=call), Message(role="tool", content=""),
            Message(role="assistant", content="Done."),
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> BubblewrapBackend:
    return BubblewrapBackend()


async def judge(backend, task, source):
    episode = FinishedEpisode("Done.", [], {"solution.py": source.encode()})
    return await get_verifier(task.verifier, backend).verify(task, episode)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_honest_script_passes_what_is_right_and_fails_what_is_wrong(backend, name):
    task = task_of(SCRIPTS[name])
    right, wrong = await judge(backend, task, RIGHT + "\n# another\n"), await judge(backend, task, WRONG)
    assert (right.verdict, right.score) == (Verdict.PASS, 1.0), (right.message, right.evidence)
    assert (wrong.verdict, wrong.score, wrong.reason_code) == (Verdict.FAIL, 0.0, ReasonCode.WRONG_ANSWER), wrong
    assert "verifier" not in wrong.evidence


async def test_a_tool_of_the_candidates_says_its_own_code(backend):
    task = task_of({"test.sh": CLI_SH}, CLI)
    assert (await judge(backend, task, CLI)).verdict is Verdict.PASS
    assert (
        await judge(backend, task, CLI.replace("sys.exit(0)", "import os; sys.stdout.flush(); os._exit(0)"))
    ).verdict is Verdict.PASS
    assert (await judge(backend, task, CLI.replace("2 *", "3 *"))).verdict is Verdict.FAIL


async def test_an_exit_that_a_check_waits_for_is_none_of_its_own(backend):
    reference = "def double(value):\n    if value is None:\n        raise SystemExit\n    return value * 2\n"
    task = task_of({"test.sh": BY_CODE, "check.py": RAISES, "pytest_like.py": PYTEST_LIKE}, reference)
    assert (await judge(backend, task, reference)).verdict is Verdict.PASS
    assert (await judge(backend, task, "import sys\nsys.exit(0)\n")).verdict is Verdict.FAIL


@pytest.mark.parametrize("script", ["exit code", "written by Python"])
@pytest.mark.parametrize("name", HACKS)
async def test_a_candidate_cannot_speak_for_the_check(backend, name, script):
    result = await judge(backend, task_of(SCRIPTS[script]), HACKS[name])
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0), result
    if script == "exit code" and name in list(HACKS)[:8]:
        assert result.evidence["verifier"] == "VERIFIER_NO_RESULT", result


SHELL_HACKS = {
    "beside": f"echo '{{}}' > /logs/verifier/reward.json\necho 1 > {REWARD}\nchmod 444 {REWARD}\n",
    "after it": f"(until [ -s {REWARD} ]; do sleep 0.01; done; echo 1 > {REWARD}) &\n",
    "held open": f"exec 7<> {REWARD}\n(until [ -s {REWARD} ]; do sleep 0.01; done; echo 1 >&7) &\n",
    "a link": f"echo 1 > /app/x\nln -s /app/x {REWARD}\nchmod 444 /app/x\n",
    "kills": f"echo 1 > {REWARD}\nkill -9 $PPID\n",
}


@pytest.mark.parametrize("name", SHELL_HACKS)
async def test_a_reward_that_came_otherwise_than_the_references_is_not_believed(backend, name):
    """Here the candidate is a shell script: nothing seals the logs from it."""
    script = f"cd /app\nbash solution.py\n[ -e done ] && echo 1 > {REWARD} || echo 0 > {REWARD}\nsleep 0.5; true\n"
    task = task_of({"test.sh": script}, "touch /app/done\n")
    assert (await judge(backend, task, "touch /app/done; true\n")).verdict is Verdict.PASS
    result = await judge(backend, task, SHELL_HACKS[name])
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0), result
    if name != "a link":  # which is no reward at all
        assert result.reason_code is ReasonCode.TAMPER_DETECTED and result.evidence["not_as_the_reference"], result


def test_a_course_is_held_against_the_references():
    seen = {"mode": "0o100644", "links": 1, "text": "1\n"}
    opened, made = ("reward.txt", "open"), ("reward.txt", "create")
    usual = Course(
        exit_code=0, output="", ends=(("left 1", "'a.py'"),), files={"reward.txt": seen}, changed=frozenset(), logs=(),
        witnessed=True, histories=((made, opened, opened),), seal=OPEN,
    )  # fmt: skip
    assert deviation(usual, usual, is_full=True) == ""
    assert deviation(replace(usual, histories=((opened, opened),), exit_code=1), usual, is_full=False) == ""
    assert deviation(replace(usual, ends=(), histories=()), usual, is_full=True) == ""
    assert deviation(replace(usual, exit_code=1), replace(usual, seal=Seal(())), is_full=True) == ""
    anyway = {
        "open, 3 times": replace(usual, histories=((made, opened, opened, opened),)),
        "attributes, 1 times": replace(usual, histories=((made, opened, ("reward.txt", "attributes")),)),
        "too many to count": replace(usual, histories=((("", "too many to count"),),)),
        "signal 9": replace(usual, exit_code=-9),
        "/tests/a.py": replace(usual, changed=frozenset({"/tests/a.py"})),
        "/tests/new.py": replace(usual, made=frozenset({"/tests/new.py"})),
        "mode of reward.txt": replace(usual, files={"reward.txt": seen | {"mode": "0o100444"}}),
        "links of reward.txt": replace(usual, files={"reward.txt": seen | {"links": 2}}),
        "reward.json is there": replace(usual, files={"reward.txt": seen, "reward.json": seen}),
    }
    full = {
        "another order": replace(usual, histories=((opened, made, opened),)),
        "'b.py' ended otherwise": replace(usual, ends=(*usual.ends, ("left 1", "'b.py'"))),
        "code 1 instead of 0": replace(usual, exit_code=1),
    }
    for said, course in (anyway | full).items():
        assert said in deviation(course, usual, is_full=True)
        assert (said in deviation(course, usual, is_full=False)) is (said in anyway)


async def test_the_gate_refuses_a_script_that_believes_any_exit(backend):
    good = await check_task(task_of(SCRIPTS["exit code"]), backend, repeats=1)
    assert good.ok, good.message
    unseen = BY_CODE.replace("python3 /", "/usr/bin/python3 /")
    check = await check_task(task_of({"test.sh": unseen, "check.py": CHECK}), backend, repeats=1)
    assert not check.ok and check.reason_code is ReasonCode.TASK_INVALID
    assert "exits with 0" in check.message and "python3 check.py" in check.message


PARTIAL = (
    IMPORT
    + """
from solution import double

points = 0
try:
    double(None)
except ValueError:
    points += 1
try:
    points += double(4) == 8
except ValueError:
    pass
open('/logs/verifier/reward.txt', 'w').write(str(points / 2))
"""
)


async def test_the_gate_refuses_credit_for_code_that_only_refuses(backend):
    reference = "def double(value):\n    if value is None:\n        raise ValueError\n    return value * 2\n"
    task = task_of({"test.sh": "python3 /tests/check.py\n", "check.py": PARTIAL}, reference)
    check = await check_task(task, backend, repeats=1)
    assert not check.ok and "raises ValueError whatever it is asked earns 0.5" in check.message
