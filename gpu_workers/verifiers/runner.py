"""A verifier as its group uses it: unsound results refused, blame assigned, repeats compared, a broken one remembered.

A kind judges one episode and may raise: NoResult when it got nowhere, WorkerError when what it stands on failed.
Here that becomes a verdict. The rule: a verifier that gives no result on a candidate is run on the task's reference in
the same place. If the reference passes, the candidate broke the check and has failed; if not, there is no verdict.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from gpu_workers.contracts.enums import UNSCORED_VERDICTS, ReasonCode, Verdict
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, Verifier, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.reference import reference_episode
from gpu_workers.verifiers.results import (
    NoResult,
    SandboxDied,
    TaskError,
    errored,
    failed,
    quarantined,
    unavailable,
    unsound,
    verifier_hash,
)

MAX_REPEATS = 10
MAX_MESSAGE = 1000


class VerifierRunner:
    """Implements contracts.seams.Verifier for any kind; one for the episodes of one group."""

    def __init__(self, spec: VerifierSpec, judge: Verifier, backend: SandboxBackend) -> None:
        if not 1 <= spec.repeats <= MAX_REPEATS:
            raise TaskError(f"verifier.repeats: must be between 1 and {MAX_REPEATS}, got {spec.repeats}")
        self.spec = spec
        self.judge = judge
        self.backend = backend
        self.hash = verifier_hash(spec)
        self._broken: VerifierResult | None = None
        self._blaming = asyncio.Lock()
        self._reference_passed_at = float("-inf")  # start of the last run of the reference that passed
        self._reference_agrees: bool | None = None  # with itself, in `repeats` runs; None: not tried

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        """A sound result, whatever the verifier does. Never raises for what happens inside it."""
        started = time.monotonic()
        results: list[VerifierResult] = []
        while len(results) < self.spec.repeats:
            results.append(await self._judge(task, episode))
            if results[-1].verdict in UNSCORED_VERDICTS:
                break  # more runs would only cost more time
        result = agreed(results)
        if result.verdict is Verdict.QUARANTINED and await self._agrees_on_the_reference(task):
            result = unsteady(results)
        return replace(result, verifier_hash=self.hash, duration_seconds=time.monotonic() - started)

    async def _judge(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if self._broken is not None:
            return self._broken
        started = time.monotonic()
        try:
            return await self._attempt(task, episode)
        except NoResult as problem:
            return await self._assign_blame(task, problem, started)
        except WorkerError as error:
            return unavailable(error)

    async def _attempt(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        """One sound result. Raises NoResult, WorkerError."""
        try:
            try:
                result = await self.judge.verify(task, episode)
            except SandboxDied as death:
                # Nothing inside can end its sandbox in this way: the host has, and the evidence says that it was so.
                # One that dies again was killed by what runs in it.
                result = await self.judge.verify(task, episode)
                result = replace(result, evidence={**result.evidence, "run_again": str(death)[:MAX_MESSAGE]})
        except (NoResult, WorkerError):
            raise
        except Exception as error:  # the edge of foreign code: a kind that trips over a text is a verifier's crash
            raise NoResult(ReasonCode.VERIFIER_CRASH, f"{type(error).__name__}: {error}") from error
        if problem := unsound(result):
            raise NoResult(ReasonCode.VERIFIER_NO_RESULT, problem)
        return result

    async def _assign_blame(self, task: TaskBundle, problem: NoResult, started: float) -> VerifierResult:
        """The verdict of an episode that the verifier, begun at `started`, gave no result on."""
        evidence = {"verifier": str(problem.reason), "detail": str(problem)[:MAX_MESSAGE], **problem.evidence}
        async with self._blaming:
            if self._broken is not None:
                return self._broken
            if self._reference_passed_at < started and (without := await self._try_reference(task, problem)):
                return replace(without, evidence=evidence)
        message = f"the check works on the reference, but the answer broke it: {problem}"
        return failed(problem.if_candidate, message[:MAX_MESSAGE], evidence=evidence)

    async def _agrees_on_the_reference(self, task: TaskBundle) -> bool:
        """Whether `repeats` runs on the reference give one score, so that runs that differ are the answer's doing."""
        async with self._blaming:
            if self._reference_agrees is None:
                try:
                    reference = await reference_episode(task, self.backend)
                    results = [await self._attempt(task, reference) for _ in range(self.spec.repeats)]
                except (TaskError, NoResult, WorkerError):
                    return False
                self._reference_agrees = agreed(results).verdict is Verdict.PASS
            return self._reference_agrees

    async def _try_reference(self, task: TaskBundle, problem: NoResult) -> VerifierResult | None:
        """None when the reference passes; else why there is no verdict. A verifier found broken stays so."""
        reason = problem.reason if problem.reason.startswith("VERIFIER_") else ReasonCode.VERIFIER_NO_RESULT
        try:
            reference = await reference_episode(task, self.backend)
        except TaskError as error:
            return errored(
                reason, f"the verifier gave no result ({problem}), nor can it be tried: {error}"[:MAX_MESSAGE]
            )
        except WorkerError as error:
            return unavailable(error)
        began = time.monotonic()
        try:
            result = await self._attempt(task, reference)
        except NoResult as error:
            message = f"the verifier gave no result ({problem}) and none on the reference either ({error})"
        except WorkerError as error:
            return unavailable(error)
        else:
            if result.verdict == Verdict.PASS:
                self._reference_passed_at = began
                return None
            if result.verdict in UNSCORED_VERDICTS:
                return result
            message = f"the verifier gave no result ({problem}) and fails the reference ({result.message})"
        self._broken = errored(reason, message[:MAX_MESSAGE])
        return self._broken


def agreed(results: Sequence[VerifierResult]) -> VerifierResult:
    """The one result of runs on the same episode; quarantined where they disagree, an error where one had none."""
    without = next((result for result in results if result.verdict in UNSCORED_VERDICTS), None)
    if without is not None:
        return without
    if len({(result.verdict, result.score) for result in results}) == 1:
        return results[0]
    seen = [f"{result.verdict} {result.score:g} {result.reason_code}" for result in results]
    return quarantined(f"{len(results)} runs disagree: {', '.join(seen)}", evidence={"runs": seen})


def unsteady(results: Sequence[VerifierResult]) -> VerifierResult:
    """The fail of an answer on which runs disagree though the verifier is steady: it earns its lowest score."""
    worst = min(results, key=lambda result: (result.verdict is Verdict.PASS, result.score))
    reason = ReasonCode.WRONG_ANSWER if worst.verdict is Verdict.PASS else ReasonCode(worst.reason_code)
    message = f"the check is steady on the reference, but this answer passes it only at times: {worst.message}"
    seen = [f"{result.verdict} {result.score:g} {result.reason_code}" for result in results]
    score = min(result.score for result in results if result.score is not None)
    return failed(reason, message[:MAX_MESSAGE], score=score, evidence={**worst.evidence, "runs": seen})
