"""Programs that live as long as the sandbox: they keep their memory, freeze between calls, and nothing else lives."""

import pytest

from gpu_workers.contracts.tasks import EnvironmentContract, Limits

LIMITS = Limits(tool_timeout_seconds=5, cpu_seconds=2, memory_bytes=256 * 2**20)
COUNTER = """
import sys
for number, line in enumerate(sys.stdin, 1):
    print(number, line.strip(), flush=True)
    print("noted", number, file=sys.stderr, flush=True)
"""
ASK = """
import _socket

def run(arguments):
    if "descriptor" not in arguments:
        return "no such service"
    sock = _socket.socket(fileno=arguments["descriptor"])
    sock.sendall(arguments["say"].encode() + b"\\n")
    return sock.recv(4096).decode() or "ended"
"""
STATES = "cat /proc/[0-9]*/stat | cut -d' ' -f3 | tr -d '\\n'"


@pytest.fixture
async def sandbox(backend):
    made = backend.create(EnvironmentContract(limits=LIMITS))
    await made.start()
    yield made
    await made.close()


async def ask(sandbox, say, service="x", **options):
    return await sandbox.run_python(ASK, function="run", arguments={"say": say}, service=service, **options)


async def shell(sandbox, command):
    return await sandbox.exec(["/bin/sh", "-c", command])


async def test_a_service_keeps_its_memory_between_calls(sandbox):
    await sandbox.serve("x", source=COUNTER)
    first, second = await ask(sandbox, "a"), await ask(sandbox, "b")
    assert (first.stdout, second.stdout) == ("1 a\n", "2 b\n")
    assert (first.stderr, second.stderr) == ("noted 1\n", "noted 2\n")


async def test_a_program_of_the_sandbox_serves_with_its_own_variables(sandbox):
    await sandbox.serve("x", argv=["sh", "-c", 'read line; echo "$line $FLAVOUR"'], environment={"FLAVOUR": "sweet"})
    assert (await ask(sandbox, "a")).stdout == "a sweet\n"


async def test_streams_of_a_script_can_be_wrapped_anew_as_libraries_do(sandbox):
    source = """
import sys
from io import TextIOWrapper

stdin, stdout = TextIOWrapper(sys.stdin.buffer), TextIOWrapper(sys.stdout.buffer)
for number, line in enumerate(stdin, 1):
    stdout.write(f"{number} {line}")
    stdout.flush()
"""
    await sandbox.serve("x", source=source)
    assert (await ask(sandbox, "a")).stdout == "1 a\n"


async def test_an_unknown_service_is_told_to_the_caller(sandbox):
    assert (await ask(sandbox, "a", service="y")).stdout == "no such service"


async def test_it_does_not_run_while_the_policy_does(sandbox):
    source = COUNTER.replace("import sys", "import sys, threading, time, pathlib\ndef tick():\n  while True:\n    "
                             "pathlib.Path('tick').write_text(str(time.time()))\n    time.sleep(0.005)\n"
                             "threading.Thread(target=tick, daemon=True).start()")  # fmt: skip
    await sandbox.serve("x", source=source)
    await ask(sandbox, "a")
    done = await shell(sandbox, 'sleep 0.1; a=$(cat tick); sleep 0.3; b=$(cat tick); [ "$a" = "$b" ] && echo frozen')
    assert done.stdout == "frozen\n", done.stderr
    await ask(sandbox, "a")
    assert (await sandbox.read("tick", 100)) != b""


async def test_what_it_starts_after_its_first_call_dies_with_the_call(sandbox):
    source = COUNTER.replace("import sys", "import subprocess, sys\nsubprocess.Popen(['sleep', '71'])").replace(
        "    print(number", "    subprocess.Popen(['sleep', '72'], start_new_session=True)\n    print(number"
    )
    await sandbox.serve("x", source=source)
    await ask(sandbox, "a")
    await ask(sandbox, "b")
    await ask(sandbox, "c")
    done = await shell(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert done.stdout.count("sleep 71") == 1
    assert done.stdout.count("sleep 72") == 1, "only the one of the first call"


async def test_a_policys_processes_do_not_survive_beside_a_service(sandbox):
    await sandbox.serve("x", source=COUNTER)
    await ask(sandbox, "a")
    bomb = "import os\nfor _ in range(5):\n    os.fork() or os.setsid()\nwhile True: pass"
    done = await sandbox.run_python(bomb, timeout_seconds=1)
    assert done.timed_out or done.limit_hit
    await shell(sandbox, "for i in 1 2 3; do setsid sh -c 'sleep 60 & sleep 60' & done; (sleep 60 &) ; true")
    left = await shell(sandbox, STATES)
    assert sorted(left.stdout.replace("R", "").replace("S", "").replace("Z", "")) == ["T"], left.stdout
    assert (await ask(sandbox, "b")).stdout == "2 b\n"


async def test_waking_everything_for_ever_lets_nothing_survive(sandbox):
    await sandbox.serve("x", source=COUNTER)
    await ask(sandbox, "a")
    spam = "import os\nfor _ in range(4):\n    os.fork() or os.setsid()\nwhile True:\n    os.kill(-1, 18)"
    await sandbox.run_python(spam, timeout_seconds=0.5)
    left = await shell(sandbox, STATES)
    assert len(left.stdout.replace("Z", "")) <= 6, left.stdout


async def test_the_policy_can_neither_stop_a_service_nor_reach_into_it(sandbox):
    await sandbox.serve("x", argv=["/usr/bin/python3", "-c", COUNTER])
    await ask(sandbox, "a")
    done = await shell(sandbox, "kill -9 -1; for p in /proc/[0-9]*; do head -c 1 $p/mem; ls $p/fd; done")
    assert "fd" not in done.stdout
    done = await sandbox.run_python(
        "import os\n"
        "for pid in [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]:\n"
        "    for name in ('mem', 'environ'):\n"
        "        try:\n"
        "            open(f'/proc/{pid}/{name}', 'rb+' if name == 'mem' else 'rb')\n"
        "            print('open', pid, name)\n"
        "        except OSError as error:\n"
        "            pass\n"
        "    try:\n"
        "        os.kill(int(pid), 9)\n"
        "        print('killed', pid)\n"
        "    except OSError:\n"
        "        pass\n"
    )
    assert done.stdout == "", done.stdout
    assert (await ask(sandbox, "b")).stdout == "2 b\n"


async def test_time_out_keeps_the_service_and_a_limit_ends_it(sandbox):
    source = COUNTER.replace(
        "    print(number",
        "    if line.startswith('sleep'):\n        import time; time.sleep(1)\n"
        "    if line.startswith('eat'):\n        import os, time; os.fork(); big = b'x' * (170 << 20); time.sleep(9)\n"
        "    if line.startswith('burn'):\n        while True: pass\n    print(number",
    )  # fmt: skip
    await sandbox.serve("x", source=source)
    await ask(sandbox, "a")
    slow = await ask(sandbox, "sleep", timeout_seconds=0.2)
    assert slow.timed_out
    assert (await ask(sandbox, "b")).stdout.startswith("2 sleep")
    await sandbox.serve("y", source=source)  # of the other an answer may still be on its way
    await ask(sandbox, "a", "y")
    assert (await ask(sandbox, "burn", "y", timeout_seconds=300)).limit_hit == "cpu"
    gone = await ask(sandbox, "c", "y")
    assert gone.stdout == "ended" or "BrokenPipeError" in gone.stderr
    await sandbox.serve("y", source=source)
    await ask(sandbox, "a", "y")
    assert (await ask(sandbox, "eat", "y", timeout_seconds=300)).limit_hit == "memory"
    assert (await shell(sandbox, "echo fine")).stdout == "fine\n"


async def test_cpu_time_of_a_service_is_counted_call_by_call(sandbox):
    source = COUNTER.replace(
        "    print(number",
        "    from time import process_time as now\n    stop = now() + 0.5\n"
        "    while now() < stop: pass\n    print(number",
    )
    await sandbox.serve("x", source=source)
    for number in range(1, 7):  # three seconds in all, of two a call
        done = await ask(sandbox, "a")
        assert (done.stdout, done.limit_hit) == (f"{number} a\n", "")


async def test_endless_errors_of_a_service_end_it(sandbox):
    source = COUNTER.replace(
        "    print(number", "    while number > 1: print('x' * 1000, file=sys.stderr)\n    print(number"
    )
    await sandbox.serve("x", source=source)
    await ask(sandbox, "a")
    done = await ask(sandbox, "b")
    assert done.limit_hit == "output" or done.timed_out
    assert len(done.stderr) <= LIMITS.output_bytes
    assert (await shell(sandbox, "echo fine")).stdout == "fine\n"


async def test_a_program_that_is_not_there_says_so_in_the_first_call(sandbox):
    await sandbox.serve("x", argv=["no-such-program"])
    done = await ask(sandbox, "a")
    assert "no-such-program: not found" in done.stderr


async def test_without_services_nothing_is_left_either(sandbox):
    await shell(sandbox, "sleep 60 & setsid sleep 60 &")
    assert "T" not in (await shell(sandbox, STATES)).stdout
