"""Claim: an episode's sandbox runs its first command at most 15 ms after a plain Python process would have.

All sides in one run, interleaved: a plain process (`true`), a plain Python process, the resident sandbox from nothing
to the end of its first command, and, for the decision between one sandbox an episode and one a call, a fresh
bubblewrap process a call over a folder of the host. At 1 and at 32 at once. Then an episode's first tool call after a
turn of TURN_SECONDS, its sandbox started at the reset against at the call; what one more call costs and what an idle
sandbox weighs. Where Docker or Podman runs SANDBOX_IMAGE: its own `run`, and our sandbox on it. Prints one JSON object.
Run: `python benchmarks/sandbox_start.py [--rounds N]`.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from gpu_workers.contracts.seams import SandboxBackend, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.backends import load_choice, make_backend
from gpu_workers.sandboxes.bubblewrap import SANDBOX_UID, BubblewrapBackend
from gpu_workers.sandboxes.channel import sealed
from gpu_workers.sandboxes.host import HostPolicy
from gpu_workers.sandboxes.seccomp import filter_program
from gpu_workers.tools.toolbox import ToolBox

AIM_MILLISECONDS = 15
TURN_SECONDS = 1.5
TOOL = ToolSpec(name="double", source="def call(arguments):\n    return str(2 * int(arguments['n']))")


async def plain(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0


async def resident(backend: SandboxBackend) -> None:
    """From nothing to the end of the first command; closing is not counted, it happens while others run."""
    sandbox = backend.create(EnvironmentContract())
    try:
        await sandbox.start()
        assert (await sandbox.exec(["true"])).exit_code == 0
    finally:
        closing.append(asyncio.create_task(sandbox.close()))


closing: list[asyncio.Task[None]] = []


async def fresh(folder: Path, *argv: str) -> None:
    """One command in a bubblewrap process of its own, with the mounts and limits of the facts and a folder bound in."""
    seccomp = sealed(filter_program(), "seccomp")
    server = sealed(b"", "server")
    line = command.command_line(
        command.find_bwrap(), command.find_python(), EnvironmentContract(), seccomp_fd=seccomp, server_fd=server
    )
    line = [part for part in line[: line.index("--")] if part != "--as-pid-1"]
    at = line.index("/workspace") - 3
    while line[at] != "--perms":
        at -= 1
    line[at : at + 6] = ["--bind", str(folder), "/workspace"]
    limits = ["prlimit", "--core=0", "--nofile=256", "--nproc=64", "--as=536870912", "--cpu=10", "--fsize=67108864"]
    owner = {"user": SANDBOX_UID, "group": SANDBOX_UID, "extra_groups": []} if os.geteuid() == 0 else {}
    process = await asyncio.create_subprocess_exec(
        *line, "--", *limits, *argv, pass_fds=[seccomp], stdin=asyncio.subprocess.DEVNULL, cwd="/", **owner
    )
    code = await process.wait()
    os.close(seccomp)
    os.close(server)
    assert code == 0


async def timed(once: Callable[[], Awaitable[None]], at_once: int, rounds: int) -> list[float]:
    """Milliseconds of each run, `at_once` at a time."""

    async def one() -> float:
        started = time.perf_counter()
        await once()
        return (time.perf_counter() - started) * 1000

    times: list[float] = []
    for _ in range(rounds):
        times += await asyncio.gather(*(one() for _ in range(at_once)))
        await asyncio.gather(*closing)
        closing.clear()
    return times


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"median_ms": round(statistics.median(ordered), 2), "p99_ms": round(p99, 2), "n": len(ordered)}


async def calls(backend: BubblewrapBackend, rounds: int) -> dict[str, float]:
    """Median milliseconds of one more call in a running sandbox."""
    sandbox = backend.create(EnvironmentContract())
    await sandbox.start()
    await asyncio.sleep(0.3)
    box = ToolBox(sandbox, [TOOL])
    sides: dict[str, Callable[[], Awaitable[object]]] = {
        "call_tool": lambda: box.call("double", {"n": 2}),
        "call_true": lambda: sandbox.exec(["true"]),
        "call_shell": lambda: sandbox.exec(["sh", "-c", "echo hi"]),
        "call_python_process": lambda: sandbox.exec([command.find_python().path, "-c", "pass"]),
    }
    result: dict[str, float] = {}
    for name, side in sides.items():
        times = await timed(side, 1, rounds)  # type: ignore[arg-type]
        result[f"{name}_ms"] = round(statistics.median(times), 2)
    await sandbox.close()
    return result


async def idle_bytes(backend: BubblewrapBackend, count: int = 20) -> float:
    """Proportional memory of one idle sandbox, all its processes."""
    sandboxes = [backend.create(EnvironmentContract()) for _ in range(count)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    await asyncio.sleep(0.5)
    total = sum(process.memory_full_info().pss for process in psutil.Process().children(recursive=True))
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    return total / count


async def first_calls(backend: BubblewrapBackend, at_once: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each episode's first call, with and without a start at the reset, in turn."""
    times: dict[str, list[float]] = {"warm": [], "cold": []}

    async def episode(name: str) -> None:
        environment = ToolEnvironment(backend, EnvironmentContract(), [ToolSpec(name="shell")], warm=name == "warm")
        await environment.reset()
        await asyncio.sleep(TURN_SECONDS)
        started = time.perf_counter()
        assert (await environment.step("shell", {"command": "true"})).ok
        times[name].append((time.perf_counter() - started) * 1000)
        await environment.close()

    for _ in range(rounds):
        for name in times:
            await asyncio.gather(*(episode(name) for _ in range(at_once)))
    return times


async def container_sides() -> dict[str, Callable[[], Awaitable[None]]]:
    """Each engine on PATH that runs SANDBOX_IMAGE: its own `run … true`, and our sandbox on it."""
    sides: dict[str, Callable[[], Awaitable[None]]] = {}
    image = os.environ.get("SANDBOX_IMAGE", "")
    for name in ("docker", "podman"):
        if not image or not shutil.which(name):
            continue
        choice = load_choice({**os.environ, "SANDBOX_BACKEND": name})
        backend = make_backend(choice, HostPolicy())
        try:
            await backend.probe()
        except WorkerError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        words = ["run", "--rm", "--network", "none", "--pull", "never"]
        runtime = ["--runtime", choice.runtime]
        line = [name, *words[:1], *runtime, *words[1:]] if name == "docker" else [name, *runtime, *words]
        sides[f"{name}_run_true ({choice.runtime})"] = partial(plain, *line, choice.image, "true")
        sides[f"{name}_sandbox ({choice.runtime})"] = partial(resident, backend)
    return sides


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--container-rounds", type=int, default=5)
    options = parser.parse_args()
    backend = BubblewrapBackend()
    isolation = await backend.probe()
    python = command.find_python().path
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        sides: dict[str, Callable[[], Awaitable[None]]] = {
            "plain_true": lambda: plain("true"),
            "plain_python": lambda: plain(python, "-c", "pass"),
            "resident_start": lambda: resident(backend),
            "fresh_true": lambda: fresh(folder, "true"),
            "fresh_python": lambda: fresh(folder, python, "-c", "pass"),
        }
        times: dict[str, dict[int, list[float]]] = {name: {1: [], 32: []} for name in sides}
        cpu = dict.fromkeys(sides, 0.0)
        for at_once, rounds in ((1, options.rounds), (32, max(3, options.rounds // 10))):
            for _ in range(rounds):
                for name, side in sides.items():
                    before = _cpu_seconds()
                    times[name][at_once] += await timed(side, at_once, 1)
                    cpu[name] += _cpu_seconds() - before
        result: dict[str, object] = {f"at_once_{n}": {name: summary(times[name][n]) for name in sides} for n in (1, 32)}
        # Of this process and its children, hardly moved by whatever else the machine does. Not of the fresh sides:
        # their outer process does not wait for the inner one, so the kernel does not add its time here.
        waited = ("plain_true", "plain_python", "resident_start")
        result["cpu_ms"] = {name: round(cpu[name] * 1000 / sum(map(len, times[name].values())), 1) for name in waited}
    over = statistics.median(times["resident_start"][1]) - statistics.median(times["plain_python"][1])
    result |= await calls(backend, options.rounds)
    result["idle_mib"] = round(await idle_bytes(backend) / 2**20, 2)
    for at_once, rounds in ((1, 12), (32, 4)):
        first = await first_calls(backend, at_once, rounds)
        result[f"first_call_at_once_{at_once}"] = {name: summary(found) for name, found in first.items()}
    containers = await container_sides()
    result["containers"] = {
        f"{name}, {n} at once": summary(await timed(side, n, max(1, options.container_rounds // n)))
        for n in (1, 32)
        for name, side in containers.items()
    } or "no engine on PATH that runs SANDBOX_IMAGE"
    result |= {"over_plain_python_ms": round(over, 2), "aim_ms": AIM_MILLISECONDS, "holds": over <= AIM_MILLISECONDS}
    result["load_average"] = os.getloadavg()[0]
    print(json.dumps(result | {"isolation": isolation}, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
