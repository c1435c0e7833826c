"""The hack suite once more as an ordinary user: sandboxes there start from another uid and without root."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hacks.__main__ import ALL

ROOT = Path(__file__).parents[2]
UID = 47_111  # of no account
TIMEOUT_SECONDS = 900


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ratchet-hacks-"))
    os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_the_suite_as_an_ordinary_user(home: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, and needs setpriv; every other test here ran as this user")
    # env: setpriv itself still reads like root
    prefix = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env"]
    packages = sysconfig.get_paths()["purelib"]
    variables = {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{ROOT}:{packages}",
    }  # fmt: skip
    probe = "import sys; assert sys.version_info[:2] == (3, 11); import tests.hacks.world"

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, *command], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )

    pythons = (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3")
    python = next((python for python in pythons if run(python, "-c", probe).returncode == 0), None)
    if python is None:
        pytest.skip("no Python 3.11 and checkout that another user may read")
    done = run(python, "-m", "tests.hacks")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, "\n".join(line for line in lines if line.startswith("WRONG")) + done.stderr[-2000:]
    assert lines[0].startswith(f"uid {UID};")
    assert lines[-1] == f"{len(ALL)} right, 0 wrong"
