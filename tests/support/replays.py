"""Tasks with tools, policies that say given turns, and a store: what tests of replays play with, for real."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, TurnRecord
from gpu_workers.contracts.replays import EpisodeReproduced, ReproduceJob, StoredEpisode
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.rollout.group import GroupServices
from gpu_workers.rollout.playback import TextSession, play
from gpu_workers.rollout.reproduce import reproduce
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sessions.session import ContextFullError
from gpu_workers.verifiers.registry import get_verifier

COUNT = """
def call(arguments):
    with open("count.txt", "a") as handle:
        handle.write("x")
    with open("count.txt") as handle:
        return str(len(handle.read()))
"""
ROLL = """
import os

def call(arguments):
    return os.urandom(16).hex()
"""
RANDOM_VERIFIER = """
import os

def verify(episode):
    return {"score": os.urandom(1)[0] % 2, "message": "thrown"}
"""
COUNTING_VERIFIER = """
def verify(episode):
    return {"score": float(episode["files"].get("count.txt") == "xx"), "message": str(episode["files"])}
"""


class Turns(TextSession):
    """The policy that says these turns."""

    def __init__(self, task: TaskBundle, *texts: str) -> None:
        super().__init__(task.prompt)
        self.texts = list(texts)

    def next_turn(self) -> TurnRecord:
        if not self.texts:
            raise ContextFullError("no more")
        return TurnRecord(role="assistant", text=self.texts.pop(0), finish_reason="stop")


def make_task(**changes: Any) -> TaskBundle:
    values: dict[str, Any] = {
        "key": "count",
        "prompt": [Message(role="user", content="Count to two.")],
        "tools": [ToolSpec(name="count", source=COUNT), ToolSpec(name="roll", source=ROLL)],
        "max_turns": 4,
        "contract": EnvironmentContract(limits=Limits(tool_timeout_seconds=5)),
        "verifier": VerifierSpec(kind=VerifierKind.PROGRAM, program=COUNTING_VERIFIER),
    }
    return TaskBundle(**{**values, **changes})


class Bench:
    """A store, the real sandbox, and what was played."""

    def __init__(self, folder: Path) -> None:
        self.store = ObjectStore(f"file://{folder}")
        backend = BubblewrapBackend()
        self.services = GroupServices(
            store=self.store, connect=lambda url: pytest.fail("an engine was asked"), engine_urls=(),
            models_dir=folder, backend=backend, verifier=lambda task: get_verifier(task.verifier, backend),
            load_task=lambda key: msgspec.json.decode(self.store.get(key), type=TaskBundle),
        )  # fmt: skip
        try:
            asyncio.run(backend.probe())
        except WorkerError as error:
            pytest.skip(str(error))

    async def store_episode(self, task: TaskBundle, *texts: str, **changes: Any) -> ReproduceJob:
        """Play the turns once and store the episode as a group would; `changes` falsify its record."""
        key = self.store.put(msgspec.json.encode(task))
        record = await play(task, Turns(task, *texts), self.services)
        record = msgspec.structs.replace(record, **changes)
        transcript = GroupTranscript("g", task.key, key.rsplit("/", 1)[-1], [record])
        stored = StoredEpisode(episode_id="e", transcript=self.store.put(transcript.encode()), index=0)
        return ReproduceJob(job_id="j", task=key, episode=stored)

    def stored(self, job: ReproduceJob) -> EpisodeRecord:
        return GroupTranscript.decode(self.store.get(job.episode.transcript)).episodes[0]

    async def reproduce(self, job: ReproduceJob) -> EpisodeReproduced:
        return await reproduce(job, self.services)
