"""The supervisor as root, as an ordinary user and as a user without an account."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ratchet.env import ROOT
from ratchet.services.marks import server_processes
from tests.integration.services.machine import Machine, wait_for


def python_for(prefix: list[str]) -> tuple[str, str]:
    """An interpreter that the other user may run, and where it finds our packages; skips when there is none."""
    packages = os.pathsep.join([sysconfig.get_paths()["purelib"], os.environ.get("PYTHONPATH", "")])
    probe = f"import sys, psycopg, redis; sys.path[:0] = [{str(ROOT / 'platform')!r}]; import ratchet.env"
    for python in (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3"):
        command = [*prefix, python, "-c", "import sys; assert sys.version_info[:2] == (3, 11); " + probe]
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{packages}:{ROOT}"}
        if subprocess.run(command, env=variables, capture_output=True).returncode == 0:
            return python, packages
    pytest.skip("no Python 3.11 and checkout that another user may read")


@pytest.fixture(params=["nobody", "without an account"])
def other_user(request: pytest.FixtureRequest) -> Iterator[Machine]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, and needs setpriv")
    uid = {"nobody": 65534, "without an account": 47_110}[request.param]
    prefix = [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        "env",
    ]  # env: setpriv itself still reads like root
    python, packages = python_for(prefix)
    folder = Path(tempfile.mkdtemp(prefix="ratchet-user-"))
    os.chown(folder, uid, uid)
    machine = Machine(folder / "home", prefix=tuple(prefix), python=python)
    machine.variables = {"PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}:{packages}", "HOME": str(folder)}
    yield machine
    machine.close()
    living = machine.living()
    shutil.rmtree(folder)
    assert living == []


def test_another_user_keeps_data_over_a_kill(other_user: Machine) -> None:
    other_user.up("--only", "postgres,valkey")
    assert other_user.living() == ["postgres", "valkey"]
    uid = other_user.root.stat().st_uid
    for process in server_processes(other_user.home):
        assert Path(f"/proc/{process.pid}").stat().st_uid in (uid, 0)  # 0: a process the kernel calls undumpable
    with redis.Redis(unix_socket_path=str(other_user.home.valkey_socket)) as client:
        client.set("kept", 1)
    other_user.signal(signal.SIGKILL)
    assert wait_for(lambda: other_user.living() == [])

    other_user.up("--only", "postgres,valkey")
    with redis.Redis(unix_socket_path=str(other_user.home.valkey_socket)) as client:
        assert client.get("kept") == b"1"


def test_folder_of_somebody_else_is_refused(other_user: Machine) -> None:
    other_user.root.mkdir(mode=0o700)  # root's
    done = other_user.run("up", "--only", "valkey")
    assert done.returncode == 1
    assert "RATCHET_HOME" in done.stderr and "Traceback" not in done.stderr
