"""One task with a tool, and a way to run groups of it against scripted parts."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_workers.contracts.enums import Purpose, VerifierKind
from gpu_workers.contracts.messages import PolicyRef, RolloutJob, Sampling
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.rollout.group import GroupServices
from tests.support.replays import Bench
from tests.unit.gpu_workers.rollout.scripted import AnswerVerifier, FakeBackend, Script, ScriptedEngine

PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.fixture
def task() -> TaskBundle:
    return TaskBundle(
        key="t1",
        prompt=[Message(role="system", content="s"), Message(role="user", content="Is it?")],
        examples=[Message(role="user", content="e1?"), Message(role="assistant", content="yes")],
        tools=[
            ToolSpec(name="look", parameters=PARAMETERS, source="def call(arguments):\n    return arguments['q']\n")
        ],
        max_turns=3,
        contract=EnvironmentContract(limits=Limits(episode_timeout_seconds=5)),
        verifier=VerifierSpec(kind=VerifierKind.EXACT, expected="yes"),
    )


class World:
    """Scripted services and the jobs that use them."""

    def __init__(self, model: Path, store: ObjectStore) -> None:
        self.model = model
        self.store = store
        self.engines: dict[str, ScriptedEngine] = {}
        self.backend = FakeBackend()
        self.verifier = AnswerVerifier()

    def engine(self, script: Script, url: str = "http://one", **options: Any) -> ScriptedEngine:
        self.engines[url] = ScriptedEngine(self.model, script, **options)
        return self.engines[url]

    def services(self) -> GroupServices:
        return GroupServices(
            store=self.store,
            connect=lambda url: self.engines[url],
            engine_urls=tuple(self.engines),
            models_dir=self.model.parent,
            backend=self.backend,
            verifier=lambda task: self.verifier,
            load_task=lambda key: msgspec.json.decode(self.store.get(key), type=TaskBundle),
        )

    def job(self, task: TaskBundle, **changes: Any) -> RolloutJob:
        values: dict[str, Any] = {
            "group_id": "g1",
            "attempt": 1,
            "purpose": Purpose.TRAIN,
            "task": self.store.put(msgspec.json.encode(task)),
            "group_size": 4,
            "policy": PolicyRef(adapter="run-1.a1@v3", version=3),
            "sampling": Sampling(max_new_tokens=64, seed=100),
            "deadline": time.time() + 30,
        }
        return RolloutJob(**{**values, **changes})


@pytest.fixture
def world(tiny_model: Path, tmp_path: Path) -> World:
    return World(tiny_model, ObjectStore(f"file://{tmp_path}"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
