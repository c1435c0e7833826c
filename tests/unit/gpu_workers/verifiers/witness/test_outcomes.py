"""A script's pytest: every test that passes with the reference has passed, and no code of the policy has left one."""

# Programs are data here.
# ruff: noqa: E501

import shutil
import tempfile
from importlib import util
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_workers.contracts.environment import Mount, MountRole
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import Message
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.host import load_host_policy
from gpu_workers.verifiers.registry import get_verifier
from tests.hacks.scripted import REWARD, scripted
from tests.hacks.world import RIGHT, write

PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
SCRIPT = f"export PYTHONPATH=/runner:/app\nif python3 -m pytest -q -p no:cacheprovider /tests/test_it.py; then echo 1 > {REWARD}; else echo 0 > {REWARD}; fi\n"
TESTS = """
import pytest

def test_one():
    from solution import total
    assert total([1, 2]) == 3

@pytest.mark.parametrize("many", [[4, 5], [9]])
def test_more(many):
    from solution import total
    assert total(many) == 9

def test_elsewhere():
    pytest.skip("not on this machine")

@pytest.mark.xfail
def test_known():
    assert False
"""
TASK = scripted(SCRIPT, test_it_dot_py=TESTS)
IN_CALL = "import pytest, unittest\n\ndef total(numbers):\n    {}\n"
LEAVING = {
    "pytest.skip": IN_CALL.format("pytest.skip('later')"),
    "SkipTest": IN_CALL.format("raise unittest.SkipTest('later')"),
    "pytest.xfail": IN_CALL.format("pytest.xfail('known')"),
    "importorskip": IN_CALL.format("pytest.importorskip('nothing_like_it')"),
    "pytest.exit": IN_CALL.format("pytest.exit('done', returncode=0)"),
    "skip at import": "import pytest\npytest.skip('no', allow_module_level=True)\n",
    "one test only": IN_CALL.format("return sum(numbers) if numbers != [9] else pytest.skip('later')"),
}
BEHIND = "exec('import pytest\\ndef total(numbers):\\n    pytest.skip(\"later\")')\n"


@pytest.fixture(scope="module")
def backend():
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, which only its owner can enter
        yield with_runner(Path(folder))


def with_runner(folder):
    for name in PACKAGES:
        found = util.find_spec(name)
        if found is not None and found.submodule_search_locations and found.origin:
            shutil.copytree(Path(found.origin).parent, folder / name)
        elif found is not None and found.origin:
            shutil.copy(found.origin, folder)
    folder.chmod(0o755)
    return BubblewrapBackend(host=load_host_policy({"SANDBOX_DATA_ROOTS": f"runner={folder}:verifier_secret"}))


async def judged(backend, source, task=TASK, path="solution.py"):
    mounts = [Mount(path="/runner", source="runner", role=MountRole.VERIFIER_SECRET)]
    task = replace(task, contract=replace(task.contract, mounts=mounts))
    return await get_verifier(task.verifier, backend).verify(
        task, FinishedEpisode("Done.", [], {path: source.encode()})
    )


async def test_the_tests_own_skips_are_no_matter(backend):
    result = await judged(backend, RIGHT)
    assert (result.verdict, result.score) == ("pass", 1.0), (result.message, result.evidence)


@pytest.mark.parametrize("name", LEAVING)
async def test_a_test_that_the_policy_leaves_has_not_passed(backend, name):
    result = await judged(backend, LEAVING[name])
    assert (result.verdict, result.score, result.evidence["verifier"]) == ("fail", 0.0, "VERIFIER_NO_RESULT"), result


async def test_what_passes_with_the_reference_must_have_passed(backend):
    result = await judged(backend, BEHIND)
    assert (result.verdict, result.reason_code) == ("fail", "TAMPER_DETECTED"), result
    assert "test_it.py::test_one" in result.message


async def test_tests_that_the_policy_writes_may_be_others(backend):
    own = Message(role="assistant", content=write("test_mine.py", "def test_ours():\n    assert True\n"))
    task = scripted(SCRIPT.replace("/tests/test_it.py", "/app/test_mine.py"))
    task = replace(task, reference=[own, *task.reference[1:]])
    result = await judged(backend, "def test_another():\n    assert True\n", task, "test_mine.py")
    assert result.score == 1.0, result
