"""Every probe is a real program: inside a sandbox it reaches nothing, outside the same program does.

The second half is the control: a probe that reaches nothing anywhere proves nothing. Some need root outside; then the
control runs for root alone.
"""

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.escape.programs import bombs, files, kernel, network, others

LIMITS: dict[str, Any] = {
    "cpu_seconds": 8, "memory_bytes": 64 * 2**20, "num_processes": 24, "disk_bytes": 4 * 2**20, "output_bytes": 8192,
    "tool_timeout_seconds": 25.0,
}  # fmt: skip
NEEDS_ROOT = {
    "read_shadow", "write_root", "open_programs_for_writing", "hold_capabilities", "make_device", "open_devices",
    "open_packet_socket", "open_raw_socket", "open_core_pattern", "open_settings", "read_kernel_memory",
    "open_memory_of_others", "join_a_namespace", "change_root", "load_a_program", "count_events",
    "handle_page_faults", "open_a_file_system",
}  # fmt: skip
# An ordinary user may do it to a process of its own; root without capabilities may not.
NEEDS_ORDINARY = {"limit_a_process"}


@dataclass(frozen=True)
class Probe:
    topic: str
    name: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.name}"


def probes() -> list[Probe]:
    found = []
    for module in (files, network, kernel, others, bombs):
        topic = module.__name__.rpartition(".")[2]
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__ == module.__name__:
                found.append(Probe(topic, name))
    return found


SPECIAL = {"cpu_of_short_lived_children": {"cpu_seconds": 1}}
PROBES = probes()


def limits_of(probe: Probe) -> dict[str, Any]:
    return LIMITS | SPECIAL.get(probe.name, {})


def kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def skip_if_absent(host: Any, probe: Probe) -> None:
    needed = {"reach_localhost_by_ipv6": "tcp6_port", "reach_the_hosts_own_address": "host_address"}
    if probe.name == "call_what_is_newer_than_the_filter" and kernel_version() < (6, 10):
        pytest.skip("this host's kernel does not have the call")
    files = {
        "read_the_kernels_configuration": "/proc/config.gz", "read_the_hosts_pressure": "/proc/pressure",
        "read_the_kernels_symbols": "/proc/kallsyms",
    }  # fmt: skip
    if probe.name in files and not Path(files[probe.name]).exists():
        pytest.skip("this host's kernel shows no such thing")
    if probe.name in needed and not host.facts[needed[probe.name]]:
        pytest.skip("this host has no such address")


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_nothing_is_reached_from_inside(host, probe):
    skip_if_absent(host, probe)
    done = host.ask("inside", topic=probe.topic, name=probe.name, limits=limits_of(probe))
    assert "ESCAPED" not in done["stdout"], done
    stopped = done["exit_code"] < 0 or done["limit_hit"] or done["timed_out"]
    assert done["stdout"].startswith("held:") or stopped or probe.name == "output", f"the probe did not run: {done}"
    assert done["reached"] == [], "a socket of the host was reached"
    assert done["victim_before"][0] == "living"
    assert done["victim_after"] == done["victim_before"], "a process of the host was changed, stopped or killed"
    assert len(done["stdout"]) <= LIMITS["output_bytes"]
    assert done["alive"], "the sandbox must serve the next call"
    assert done["seconds"] < LIMITS["tool_timeout_seconds"] + 5


@pytest.mark.parametrize("probe", PROBES, ids=str)
def test_the_same_program_reaches_it_outside(host, probe):
    skip_if_absent(host, probe)
    if probe.name in NEEDS_ROOT and host.name != "root":
        pytest.skip("an ordinary user cannot do it outside either; root is the control")
    if probe.name in NEEDS_ORDINARY and host.name == "root":
        pytest.skip("an ordinary user is the control")
    done = host.ask("outside", topic=probe.topic, name=probe.name, limits=limits_of(probe))
    assert "ESCAPED" in done["stdout"], done


def test_a_sandbox_of_roots_own_user_without_its_mask_would_let_core_pattern_through(host):
    """The control of two protections that nothing else shows: the user dropped to, and the mask of /proc/sys."""
    if host.name != "root":
        pytest.skip("only root's sandboxes need both")
    done = host.ask("weakened", topic="kernel", name="open_core_pattern", limits=LIMITS)
    assert done["stdout"] == "ESCAPED: opened for writing\n", done
