"""Holds what a pass rests on against what the reference's rests on: no object's word, no number that is none."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.verifiers.reference import reference_episode
from gpu_workers.verifiers.results import NoResult, SandboxDied, TaskError, failed
from gpu_workers.verifiers.sandboxed import SandboxRun

KEY = "rests_on"  # of a result from inside
MAX_SHOWN = 20
Attempt = Callable[[TaskBundle, FinishedEpisode], Awaitable[tuple[SandboxRun, VerifierResult]]]


class Leaning:
    """Of one verifier. `attempt` judges an episode by itself. The reference is tried once a task, if needed."""

    def __init__(self, backend: SandboxBackend, attempt: Attempt) -> None:
        self.backend = backend
        self.attempt = attempt
        self._asking = asyncio.Lock()
        self._of_reference: dict[str, frozenset[str] | None] = {}

    async def judge(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        """The result; a fail without credit where it rests on what the reference's does not."""
        run, result = await self.attempt(task, episode)
        words = {str(word): times for word, times in (run.result.get(KEY) or {}).items() if type(times) is int}
        if not words or not result.score:
            return result
        async with self._asking:
            if task.key not in self._of_reference:
                self._of_reference[task.key] = await self._words_of_reference(task)
        allowed = self._of_reference[task.key]
        noted = replace(result, evidence={**result.evidence, KEY: _shown(words)})
        if allowed is None or not (beyond := {word: times for word, times in words.items() if word not in allowed}):
            return noted
        is_constant = any(times < 0 for times in beyond.values())
        reason = ReasonCode.TAMPER_DETECTED if is_constant else ReasonCode.WRONG_ANSWER
        message = (
            f"the check would rest on {', '.join(sorted(beyond)[:5])} of the candidate, as with the reference it never"
            " does: plain and finite values are wanted"
            + (", not an answer that pleases whatever it is asked" * is_constant)
        )
        failing = failed(reason, message, evidence={KEY: _shown(beyond)})
        return replace(noted, verdict=failing.verdict, score=0.0, reason_code=reason, message=message,
                       evidence={**noted.evidence, **failing.evidence})  # fmt: skip

    async def _words_of_reference(self, task: TaskBundle) -> frozenset[str] | None:
        """None where there is no reference that passes."""
        try:
            run, result = await self.attempt(task, await reference_episode(task, self.backend))
        except SandboxDied:
            raise
        except (TaskError, NoResult):
            return None
        return frozenset(map(str, run.result.get(KEY) or {})) if result.verdict is Verdict.PASS else None


def _shown(words: dict[str, int]) -> dict[str, Any]:
    return {word: abs(times) for word, times in list(words.items())[:MAX_SHOWN]}
