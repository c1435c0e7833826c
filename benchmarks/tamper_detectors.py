"""Claim: the tamper detectors cost an episode less than one tool call does.

Three parts: the rules over finished episodes (those of the hack suite and its honest controls, played once), in CPU
time of the worker; the search for decoys' content in what a call shows that met them, for texts of 100,000 characters;
and the decoys, as whole episodes in a sandbox (start, 4 shell calls, snapshot, close) with and without them,
interleaved, in wall and CPU time.
Prints one JSON object. Run: `python benchmarks/tamper_detectors.py [--rounds N] [--episodes N]`.
"""

import argparse
import ast
import asyncio
import base64
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.decoys import Decoys
from gpu_workers.verifiers.detectors.evaluate import find_flags
from gpu_workers.verifiers.detectors.traces import Traces
from tests.hacks.controls import CONTROLS
from tests.hacks.patterns import PATTERNS
from tests.hacks.world import World

NUM_CALLS = 4
SLOW = "15-"  # plays that wait for their time-out


async def rules(rounds: int) -> dict[str, float]:
    """CPU milliseconds an episode of all rules. Files are those that the plays write by a tool of their own."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        plays = [play for play in (*PATTERNS, *CONTROLS) if not str(play).startswith(SLOW)]
        records = [(play.task, await world.play(play.task, play.turns)) for play in plays]
    times = []
    for task, record in records:
        files = {path: text.encode() for path, text in task.contract.files.items()}
        for turn in record.turns:
            call = turn.tool_call
            if call is not None and call.name == "write_file" and call.ok:
                files[call.arguments["path"]] = call.arguments["content"].encode()
        for _ in range(rounds):
            started = time.process_time()
            find_flags(task, record, files)
            times.append(1000 * (time.process_time() - started))
    times.sort()
    return {
        "num_episodes": len(records),
        "median": statistics.median(times),
        "p99": times[int(0.99 * (len(times) - 1))],
        "mean": statistics.fmean(times),
    }


def traces(rounds: int) -> dict[str, float]:
    """CPU milliseconds of one text, by kind."""
    decoys = Decoys()
    random = Random(0)
    texts = {
        "source": Path(ast.__file__).read_text() * 3,
        "numbers": " ".join(str(random.randrange(300)) for _ in range(30_000)),
        "base64": base64.b64encode(random.randbytes(75_000)).decode(),
    }
    found = {}
    for name, text in texts.items():
        times = []
        for _ in range(rounds):
            started = time.process_time()
            assert not Traces(decoys.canary, decoys.number).hidden(text[:100_000])
            times.append(1000 * (time.process_time() - started))
        found[name] = statistics.median(times)
    return found


def cpu_seconds() -> float:
    """Of this process and of the sandboxes it has ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


async def episode(backend: BubblewrapBackend, decoys: Decoys | None) -> tuple[float, float]:
    """Milliseconds of a whole episode, and of CPU."""
    contract = EnvironmentContract(files={"README.md": "as tasks with a workspace bring"})
    environment = ToolEnvironment(backend, contract, [ToolSpec(name="shell")], decoys=decoys)
    started, cpu = time.perf_counter(), cpu_seconds()
    await environment.reset()
    for _ in range(NUM_CALLS):
        await environment.step("shell", {"command": "true"})
    await environment.state()
    await environment.close()
    return 1000 * (time.perf_counter() - started), 1000 * (cpu_seconds() - cpu)


async def decoys(episodes: int) -> dict[str, float]:
    """Medians of both sides, and of the differences of neighbours."""
    backend = BubblewrapBackend()
    await episode(backend, Decoys())
    rows = []
    for _ in range(episodes):
        rows.append((await episode(backend, None), await episode(backend, Decoys())))
    found = {}
    for index, name in enumerate(("wall", "cpu")):
        found[f"{name}_without"] = statistics.median(without[index] for without, _ in rows)
        found[f"{name}_with"] = statistics.median(having[index] for _, having in rows)
        found[f"{name}_difference"] = statistics.median(having[index] - without[index] for without, having in rows)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=50)
    options = parser.parse_args()
    result = {
        "rules_ms": await rules(options.rounds),
        "traces_ms": traces(options.rounds),
        "decoys_ms": await decoys(options.episodes),
    }
    print(json.dumps({part: {k: round(v, 3) for k, v in values.items()} for part, values in result.items()}, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
