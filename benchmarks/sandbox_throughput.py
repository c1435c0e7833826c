"""Claim: 500 episodes of 4 tool calls, 40 at once, all get their sandbox and their processes.

Whole episodes (start, four calls of a tool, snapshot, close) on bubblewrap, beside the same four calls as plain Python
processes without any isolation, a tenth of either at a time in turn. Prints episodes per second and core, CPU time per
episode, and how many were refused. Run: `python benchmarks/sandbox_throughput.py [--episodes N] [--at-once N]`.
"""

import argparse
import asyncio
import collections
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.tools.toolbox import ToolBox

CALLS = 4
TURNS = 10
TOOL = ToolSpec(name="double", source="def call(arguments):\n    return str(2 * int(arguments['n']))")


async def sandboxed(backend: BubblewrapBackend) -> str:
    """One episode; why it failed, or nothing."""
    sandbox = backend.create(EnvironmentContract(files={"data.txt": "7"}))
    try:
        await sandbox.start()
        box = ToolBox(sandbox, [TOOL])
        for n in range(CALLS):
            record = await box.call("double", {"n": n})
            if record.result != str(2 * n):
                return f"call: {record.result}"
        return "" if (await sandbox.files()).get("data.txt") == b"7" else "snapshot: data.txt is not in it"
    except WorkerError as error:
        return str(error)
    finally:
        await sandbox.close()


async def unprotected(python: str) -> str:
    for n in range(CALLS):
        process = await asyncio.create_subprocess_exec(
            python, "-I", "-S", "-c", f"print(2 * {n})",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        stdout, _ = await process.communicate()
        if stdout != b"%d\n" % (2 * n):
            return f"call: {stdout!r}"
    return ""


class Side:
    """Times and failures of one way to run episodes."""

    def __init__(self, episode: Callable[[], Awaitable[str]], at_once: int) -> None:
        self.episode = episode
        self.at_once = at_once
        self.count = 0
        self.seconds = self.cpu = 0.0
        self.failures: collections.Counter[str] = collections.Counter()

    async def run(self, count: int) -> None:
        gate = asyncio.Semaphore(self.at_once)

        async def one() -> None:
            async with gate:
                if problem := await self.episode():
                    self.failures[problem[:200]] += 1

        cpu, started = _cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(one() for _ in range(count)))
        self.seconds += time.perf_counter() - started
        self.cpu += _cpu_seconds() - cpu
        self.count += count

    def summary(self) -> dict[str, object]:
        return {
            "episodes": self.count,
            "refused_or_failed": sum(self.failures.values()),
            "failures": dict(self.failures),
            "per_second": round(self.count / self.seconds, 1),
            "per_second_and_core": round(self.count / self.seconds / (os.cpu_count() or 1), 1),
            "cpu_ms_per_episode": round(self.cpu / self.count * 1000, 1),
        }


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=40)
    options = parser.parse_args()
    backend = BubblewrapBackend()
    await backend.probe()
    python = command.find_python().path
    sides = {
        "sandboxed": Side(lambda: sandboxed(backend), options.at_once),
        "unprotected": Side(lambda: unprotected(python), options.at_once),
    }
    for _ in range(TURNS):
        for side in sides.values():
            await side.run(max(1, options.episodes // TURNS))
    result: dict[str, object] = {name: side.summary() for name, side in sides.items()}
    result |= {"cores": os.cpu_count(), "at_once": options.at_once, "load_average": round(os.getloadavg()[0], 1)}
    print(json.dumps(result | {"holds": not sides["sandboxed"].failures}, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
