"""Claim: a worker with 8 checks at once gives at least 10 verdicts a second of every kind, thousands by text.

Each kind judges right and wrong answers by turns, alone and 8 at once, every program and suite in a fresh sandbox of
its own. CPU counts this process and its children. Prints one JSON object.
Run: `python benchmarks/verifier_throughput.py [--verdicts N]`.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.verifiers.registry import get_verifier

AIM_PER_SECOND = 10
CODE = ("def square(n):\n    return n * n\n", "def square(n):\n    return n\n")
PROGRAM = (
    "def verify(episode):\n"
    "    done = run_python(episode['answer'] + '\\nprint(square(7))')\n"
    "    return {'score': float(done['stdout'].strip() == '49')}\n"
)
TESTS = "from solution import square\n" + "".join(
    f"def test_{n}():\n    assert square({n}) == {n * n}\n" for n in range(2, 12)
)
WEATHER = ToolSpec(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
KINDS = {
    "exact": (VerifierSpec(kind="exact", expected="Paris"), ("Paris", "Rome")),
    "tool_call": (
        VerifierSpec(kind="tool_call", expected=[{"weather": {"city": ["Oslo"]}}]),
        ('weather(city="Oslo")', 'weather(city="Rome")'),
    ),
    "program": (VerifierSpec(kind="program", program=PROGRAM), CODE),
    "tests, apart": (
        VerifierSpec(kind="tests", files={"test_it.py": TESTS}, config={"answer_file": "solution.py"}),
        CODE,
    ),
    "tests, shared": (
        VerifierSpec(
            kind="tests", files={"test_it.py": TESTS}, config={"answer_file": "solution.py", "isolation": "shared"}
        ),
        CODE,
    ),
}


async def measure(name: str, at_once: int, num: int) -> dict[str, float]:
    """Verdicts a second, milliseconds a verdict (median, p99) and CPU milliseconds a verdict."""
    spec, answers = KINDS[name]
    task = TaskBundle(
        key="t", prompt=[], tools=[WEATHER], verifier=spec, reference=[Message(role="assistant", content=answers[0])]
    )
    verifier = get_verifier(spec, BubblewrapBackend())
    slots, seconds = asyncio.Semaphore(at_once), []

    async def one(index: int) -> None:
        async with slots:
            started = time.perf_counter()
            result = await verifier.verify(task, FinishedEpisode(answer=answers[index % 2], messages=[]))
            assert result.verdict == ("fail" if index % 2 else "pass"), result
            seconds.append(time.perf_counter() - started)

    await one(0)
    seconds.clear()
    cpu, started = cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(one(index) for index in range(num)))
    took = time.perf_counter() - started
    return {
        "per_second": round(num / took, 1),
        "median_ms": round(1000 * statistics.median(seconds), 2),
        "p99_ms": round(1000 * sorted(seconds)[max(0, round(0.99 * num) - 1)], 2),
        "cpu_ms": round(1000 * (cpu_seconds() - cpu) / num, 2),
    }


def cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=100, help="of each kind at each concurrency")
    num = parser.parse_args().verdicts
    rows = {
        f"{name}, {at_once} at once": asyncio.run(measure(name, at_once, num)) for name in KINDS for at_once in (1, 8)
    }
    slowest = min(row["per_second"] for name, row in rows.items() if name.endswith("8 at once"))
    report = {"verdicts": num, "cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}
    print(json.dumps({**report, "aim_per_second": AIM_PER_SECOND, "holds": slowest >= AIM_PER_SECOND}, indent=1))


if __name__ == "__main__":
    main()
