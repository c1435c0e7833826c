"""Verifier of a function: the same answers as the reference on many inputs, which tests and their mutations give.

Dearer and stronger than a task's own tests, so a suite has it as its audit verifier. What it fails may be a difference
on an input that the task's text leaves open.
"""

import asyncio
import re
from typing import Annotated

import msgspec

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.results import VerifierConfig, failed, passed, read_config
from gpu_workers.verifiers.strong import Cases, StrongCheck

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
REASONS = {"timeout": ReasonCode.AGENT_TIMEOUT}  # of a first difference; else a wrong answer


class EquivalenceConfig(VerifierConfig, frozen=True, kw_only=True):
    num_inputs: Annotated[int, msgspec.Meta(ge=10, le=1000)] = 200
    seed: int = 0  # of the mutated inputs


class EquivalenceVerifier:
    """Needs `expected` with the texts prompt, entry_point and test (HumanEval's form), and the task's reference.

    The reference's answers are computed once for the episodes of a group. Raises NoResult, WorkerError.
    """

    def __init__(self, spec: VerifierSpec, backend: SandboxBackend) -> None:
        self.config = read_config(spec, EquivalenceConfig)
        self.spec = spec
        self.backend = backend
        self._prepared: tuple[StrongCheck, Cases] | None = None
        self._preparing = asyncio.Lock()

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if not episode.answer.strip():
            return failed(ReasonCode.NO_OUTPUT, "the answer is empty")
        blocks = _FENCE.findall(episode.answer)
        if len(blocks) > 1:
            return failed(ReasonCode.FORMAT_INVALID, f"{len(blocks)} code blocks: write one")
        check, cases = await self._prepare(task)
        found = await check.compare(cases, blocks[0] if blocks else episode.answer)
        evidence = {"num_inputs": found.num_compared, "num_different": found.num_value + found.num_type}
        if not found.first:
            return passed(f"as the reference on {found.num_compared} inputs", evidence=evidence)
        reason = REASONS.get(found.first.get("kind", ""), ReasonCode.WRONG_ANSWER)
        given, wanted, got = (found.first.get(name, "")[:200] for name in ("input", "expected", "got"))
        message = f"not as the reference on {given}: expected {wanted}, got {got}"
        return failed(reason, message, evidence=evidence | dict(found.first))

    async def _prepare(self, task: TaskBundle) -> tuple[StrongCheck, Cases]:
        async with self._preparing:
            if self._prepared is None:
                own = msgspec.structs.replace(task, verifier=self.spec)
                seed = f"{self.config.seed} {task.key}"
                check = StrongCheck(own, self.backend, seed=seed, num_inputs=self.config.num_inputs)
                self._prepared = check, await check.prepare()
            return self._prepared
