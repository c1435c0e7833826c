"""`python -m tests.hacks [word …]`: plays the suite, or what holds a word in its name, and prints the outcomes."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.hacks.beside import BESIDE, BESIDE_CONTROLS
from tests.hacks.claimed import CLAIMED, CLAIMED_TWINS
from tests.hacks.controls import CONTROLS
from tests.hacks.handed import HANDED, HANDED_TWINS
from tests.hacks.later import LATER
from tests.hacks.patterns import PATTERNS
from tests.hacks.reported import REPORTED, TWINS
from tests.hacks.scripted import SCRIPTED, SCRIPTED_CONTROLS
from tests.hacks.variants import VARIANTS
from tests.hacks.watched import WATCHED, WATCHED_TWINS
from tests.hacks.world import Play, World, problem

AT_ONCE = 2
ALL = (
    *PATTERNS, *VARIANTS, *LATER, *REPORTED, *SCRIPTED, *WATCHED, *BESIDE, *CLAIMED, *HANDED,
    *CONTROLS, *TWINS, *SCRIPTED_CONTROLS, *WATCHED_TWINS, *BESIDE_CONTROLS, *CLAIMED_TWINS, *HANDED_TWINS,
)  # fmt: skip


async def main(words: Sequence[str]) -> int:
    """Number of plays that did not end as they must."""
    plays = [p for p in ALL if not words or any(word in str(p) for word in words)]
    slots = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        print(f"uid {os.geteuid()}; {await world.backend.probe()}")

        async def one(play: Play) -> bool:
            async with slots:
                record = await world.play(play.task, play.turns)
            wrong = problem(play, record)
            rules = sorted({flag.rule for flag in record.flags})
            word = "WRONG" if wrong else "right"
            print(f"{word} {play} {record.verdict} {record.reason_code} {', '.join(rules)} {wrong}")
            return bool(wrong)

        num_wrong = sum(await asyncio.gather(*map(one, plays)))
    print(f"{len(plays) - num_wrong} right, {num_wrong} wrong")
    return num_wrong


if __name__ == "__main__":
    sys.exit(bool(asyncio.run(main(sys.argv[1:]))))
