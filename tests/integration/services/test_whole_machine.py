"""Every process of the table with a tiny engine: ready, healthy, restarted when killed, gone when the supervisor is."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.services.marks import marked_processes
from ratchet.services.memory import memory_by_process
from ratchet.services.processes import PROCESSES
from tests.integration.services.machine import Machine, free_port, wait_for

EVERYTHING = sorted([spec.name for spec in PROCESSES] + ["postgres", "valkey"])


@pytest.fixture
def whole_machine(machine: Machine) -> Iterator[Machine]:
    names = ("RATCHET_PORT", "RATCHET_ENGINE_PORT", "RATCHET_GATEWAY_PORT")
    machine.variables |= {name: str(free_port()) for name in names} | {"RATCHET_ENGINE_MODEL": "tiny"}
    machine.up()
    yield machine


@pytest.mark.slow
def test_whole_machine(whole_machine: Machine) -> None:
    machine = whole_machine
    assert machine.living() == EVERYTHING
    for name, path in [("", "healthz"), ("_ENGINE", "health"), ("_GATEWAY", "health")]:
        with urllib.request.urlopen(f"http://127.0.0.1:{machine.variables[f'RATCHET{name}_PORT']}/{path}") as answer:
            assert answer.status == 200
    for process in marked_processes(f"{machine.root}:"):
        variables = Path(f"/proc/{process.pid}/environ").read_bytes()
        plane = next((spec.plane for spec in PROCESSES if spec.name == process.name), None)
        if plane == "data":
            assert b"DATABASE_URL=" not in variables and b"\0SECRET_KEY=" not in variables, process.name
    assert sum(use.pss_bytes for use in memory_by_process(machine.home)) < 2 * 2**30

    (rollout,) = (process.pid for process in marked_processes(f"{machine.root}:") if process.name == "rollout")
    os.kill(rollout, signal.SIGKILL)
    assert wait_for(lambda: "rollout" not in machine.living())
    assert wait_for(lambda: machine.living() == EVERYTHING)

    machine.signal(signal.SIGKILL)
    assert wait_for(lambda: machine.living() == []), machine.living()
