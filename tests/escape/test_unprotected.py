"""Where a host cannot isolate, nothing runs: a clear refusal that says what to set, and no trace of the program."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.escape.conftest import ORDINARY_UID, ROOT, readable_python

# In a user namespace of its own the setting can be changed without changing it for the host.
RUN = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
WORKER = """
import asyncio, sys
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.verifiers.registry import get_verifier

async def main():
    backend = BubblewrapBackend()
    try:
        print("probe:", await backend.probe())
    except WorkerError as error:
        print("probe refused:", error.boundary, error.retryable, error)
    tools = [ToolSpec(name="shell"), ToolSpec(name="python"), ToolSpec(name="own", source=sys.argv[2])]
    for name, arguments in (
        ("shell", {"command": "touch " + sys.argv[1]}), ("python", {"code": sys.argv[2]}), ("own", {}),
    ):
        environment = ToolEnvironment(backend, EnvironmentContract(), tools)
        await environment.reset()
        try:
            print("ran:", await environment.step(name, arguments))
        except WorkerError as error:
            print("step refused:", error)
        await environment.close()

asyncio.run(main())
"""


@pytest.fixture
def place():
    folder = Path(tempfile.mkdtemp(prefix="ratchet-unprotected-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def run_worker(place: Path, *, namespaces: bool, user: str) -> tuple[list[str], bool]:
    """Lines of a worker on a host with or without user namespaces, and whether its tools left their mark."""
    canary = place / f"canary-{namespaces}"
    packages = os.pathsep.join([sysconfig.get_path("purelib"), str(ROOT)])
    prefix: list[str] = []
    python = sys.executable
    if user == "ordinary user" and os.geteuid() == 0:
        prefix = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups", "env"]
        python = readable_python(prefix, packages)
    if not namespaces:
        mapping = ["--map-root-user"] if user == "root" else ["--map-current-user", "--keep-caps"]
        prefix += ["unshare", "--user", *mapping, "sh", "-c", RUN, "sh"]
    source = f"open({str(canary)!r}, 'w')\ndef call(arguments):\n    open({str(canary)!r}, 'w')\n    return ''"
    done = subprocess.run(
        [*prefix, python, "-c", WORKER, str(canary), source],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), canary.exists()


@pytest.mark.parametrize("user", ["root", "ordinary user"])
def test_without_user_namespaces_nothing_runs_and_the_setting_is_named(host, place, user):
    if user != host.name:
        pytest.skip("the other user's turn")
    lines, marked = run_worker(place, namespaces=False, user=user)
    assert not marked, "a tool ran without a sandbox"
    assert len(lines) == 4 and lines[0].startswith("probe refused: infrastructure False SANDBOX_UNAVAILABLE: "), lines
    assert all(line.startswith("step refused: SANDBOX_UNAVAILABLE: ") for line in lines[1:]), lines
    assert all("sysctl -w user.max_user_namespaces=" in line for line in lines)


def test_with_them_the_same_worker_runs_its_tools_and_they_leave_no_mark_either(host, place):
    """The control: it is the namespaces that were missing. What the tools write stays in the sandbox."""
    lines, marked = run_worker(place, namespaces=True, user=host.name)
    assert lines[0].startswith("probe: bubblewrap") and all(line.startswith("ran: ") for line in lines[1:]), lines
    assert not marked
