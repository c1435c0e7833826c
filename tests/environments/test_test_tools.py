"""The documented template of terminal-bench's test.sh, unmodified, with the installed test tools in a real sandbox.

`make test-environments` installs them and runs this; without them it is skipped.
"""

import os
from pathlib import Path

import pytest

from apps.tasks.suites.harbor import read_task
from gpu_workers.contracts.enums import Verdict
from gpu_workers.contracts.environment import MountRole
from gpu_workers.contracts.seams import FinishedEpisode, WorkerError
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.host import DataRoot, HostPolicy
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.registry import get_verifier
from tests.unit.apps.tasks.suites.harbor_folders import folder
from tests.unit.apps.tasks.suites.test_harbor_script import TEMPLATE

TOOLS = Path(os.environ.get("RATCHET_ENVIRONMENTS_DIR", "/nowhere")) / "test-tools"
pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="test tools are not installed: make test-environments")
REWARD = "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
TESTS = "from pathlib import Path\n\n\ndef test_sum():\n    assert Path('/app/sum.txt').read_text().strip() == '12'\n"


@pytest.fixture(scope="module")
def backend() -> BubblewrapBackend:
    roots = {"test-tools": DataRoot(TOOLS, frozenset({MountRole.VERIFIER_SECRET}))}
    return BubblewrapBackend(host=HostPolicy(data_roots=roots))


def task_of(script: str):
    files = folder(tests__test_dot_sh=script, tests__test_outputs_dot_py=TESTS)
    return read_task("add-up", {path.removeprefix("add-up/"): data for path, data in files.items()})[0]


VARIANTS = {
    "template": TEMPLATE + REWARD,
    "tool run": TEMPLATE.replace("uvx \\", "set -e; set +e; uv tool run \\") + REWARD,
    "module": TEMPLATE.replace("  pytest --ctrf", "  python -m pytest --ctrf") + REWARD,
    "pip": "set -e\npip install -q pytest==8.4.0 pytest-json-ctrf==0.3.5\nset +e\npytest /tests/test_outputs.py\n"
    + REWARD,
    "venv": "set -e\nuv venv .t\nsource .t/bin/activate\nuv pip install pytest\nset +e\n"
    "uv run pytest /tests/test_outputs.py -rA\n" + REWARD,
    "plain": "python3 -m pytest /tests/test_outputs.py\n" + REWARD,
}


@pytest.mark.parametrize("name", VARIANTS)
async def test_a_script_of_the_template_is_run_as_it_is(backend, name):
    task = task_of(VARIANTS[name])
    check = await check_task(task, backend, 2, bad_repeats=1)
    assert check.ok, check.message
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], {"sum.txt": b"13\n"}))
    assert (result.verdict, result.score) == (Verdict.FAIL, 0.0)
    assert "1 failed" in result.evidence["output"]


async def test_what_cannot_be_had_fails_with_the_reason(backend):
    asks = 'i=install; apt-get $i -y no-such-package; echo "apt $?"; pip $i numpy; echo "pip $?"; curl -s e.org\n'
    task = task_of(asks + "echo 0 > /logs/verifier/reward.txt\n")
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], {}))
    said = result.evidence["output"]
    assert "apt 100" in said and "pip 1" in said
    assert "the package no-such-package is not to be had" in said and "the package numpy is not to be had" in said


async def test_the_tools_are_the_verifiers_alone(backend):
    environment = ToolEnvironment(backend, task_of(TEMPLATE).contract, task_of(TEMPLATE).tools)
    await environment.reset()
    try:
        done = await environment.step("shell", {"command": "ls /test-tools; python3 -c 'import pytest'"})
        assert not done.ok and "No module named" in done.result and "No such file" in done.result
    finally:
        await environment.close()


async def test_a_module_of_the_policy_is_not_taken_for_pytest(backend):
    task = task_of(VARIANTS["module"])
    fake = b"import sys\nsys.exit(0)\n"
    files = {"pytest.py": fake, "conftest.py": fake, "sum.txt": b"13\n"}
    result = await get_verifier(task.verifier, backend).verify(task, FinishedEpisode("x", [], files))
    assert result.verdict is Verdict.FAIL, result.message


async def test_a_worker_without_them_says_what_to_do():
    roots = {"test-tools": DataRoot(Path("/nowhere"), frozenset({MountRole.VERIFIER_SECRET}))}
    without = BubblewrapBackend(host=HostPolicy(data_roots=roots))
    with pytest.raises(WorkerError, match="make environments"):
        without.create(task_of(TEMPLATE).contract)
