"""Nothing of a call outlives it: not at its time-out, not at its end, not at the sandbox's. With controls."""

import pytest

LIMITS = {"tool_timeout_seconds": 20.0, "num_processes": 32, "cpu_seconds": 5}
# `sleep 987.125` is what the driver looks for on the host.
DOUBLE_FORK = (
    "(setsid sh -c 'trap \"\" TERM HUP INT; (setsid sleep 987.125 </dev/null >/dev/null 2>&1 &) ; sleep 987.125' &)"
)
LEFTOVERS = {
    "double-forked, at its end": (DOUBLE_FORK, 10.0),
    "double-forked, at its time-out": (DOUBLE_FORK + "; sleep 987.125", 0.7),
    "stopped": ("sleep 987.125 & kill -STOP $!; sleep 987.125", 0.7),
    "deaf to signals": ("trap '' TERM INT HUP QUIT; while :; do sleep 987.125; done", 0.7),
    "forking ahead of the kill": ("f() { sleep 987.125 & f 2>/dev/null; }; f", 1.0),
    "waiting for ever": ("sleep 987.125", 0.5),
}
LATE_EDIT = "(setsid sh -c 'sleep 0.6; echo late > late.txt' </dev/null >/dev/null 2>&1 &); echo early > early.txt"


@pytest.mark.parametrize("leftover", LEFTOVERS)
def test_no_process_is_left(host, leftover):
    command, timeout = LEFTOVERS[leftover]
    done = host.ask(
        "shell", command=command, limits=LIMITS, timeout=timeout, then="sleep 0.2; ls /proc | grep -c '^[0-9]'"
    )
    assert done["living"] == [] and done["living_at_the_end"] == []
    assert int(done["then"]) <= 5, "the next call sees the server and its own processes alone"
    assert done["seconds"] < timeout + 4


def test_a_plain_process_group_leaves_some(host):
    """The control: killing the group of the same command misses what has a session of its own."""
    command, timeout = LEFTOVERS["double-forked, at its time-out"]
    assert host.ask("process", command=command, timeout=timeout)["living"] != []


def test_nothing_edits_files_after_the_call(host):
    done = host.ask("shell", command=LATE_EDIT, limits=LIMITS, timeout=10.0, then="sleep 1.2; ls")
    assert done["then"] == "early.txt\n"
    assert done["files"] == {"early.txt": "early\n"}


def test_nothing_edits_files_after_the_sandbox(host):
    done = host.ask("shell", command=LATE_EDIT + "; sleep 987.125", limits=LIMITS, timeout=0.3)
    assert done["files"] == {"early.txt": "early\n"}


ATTACKS = {
    "signals": "kill -9 -1; for p in $(seq 2 3000); do kill -9 $p 2>/dev/null; done; echo done",
    "files": "ls -R /tmp /dev/shm /workspace; rm -rf /tmp/* /dev/shm/* /workspace/*; echo done",
    "processes": "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; cat $p/environ; done; echo done",
    "priority": "renice -n 19 -u $(id -u) 2>&1; echo done",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_another_episode_works_on_undisturbed(host, attack):
    done = host.ask("two", attack=ATTACKS[attack], limits=LIMITS | {"cpu_seconds": 20})
    marker = host.facts["marker"]
    assert done["worked"] == f"{marker}\n" * 3 and done["exit_code"] == 0
    assert marker not in done["attack"] and "mine" not in done["attack"]
