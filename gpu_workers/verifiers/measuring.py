"""Measures a verifier on one task: candidates are judged by it, and by something stronger that knows the truth."""

from gpu_workers.contracts.enums import Boundary, ReasonCode, Verdict
from gpu_workers.contracts.measurements import CandidateOutcome, MeasureItem, TaskMeasured
from gpu_workers.contracts.seams import SandboxBackend, Verifier, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.contracts.text import storable
from gpu_workers.verifiers.judge import JudgeEndpoint
from gpu_workers.verifiers.mutants.making import Mutant, MutationError, all_mutants, draw_mutants
from gpu_workers.verifiers.reference import answer_episode
from gpu_workers.verifiers.registry import get_verifier
from gpu_workers.verifiers.results import NoResult, TaskError
from gpu_workers.verifiers.runner import VerifierRunner
from gpu_workers.verifiers.strong import Cases, StrongCheck

RIGHT, WRONG, UNDECIDED = "right", "wrong", "undecided"
MAX_MESSAGE = 500
MIN_INPUTS = 10  # being equal on fewer says nothing


async def measure_task(
    item: MeasureItem,
    task: TaskBundle,
    backend: SandboxBackend,
    *,
    seed: int,
    num_inputs: int,
    judge: JudgeEndpoint | None = None,
) -> TaskMeasured:
    """Outcomes of a task's candidates. Raises WorkerError(INFRASTRUCTURE) where this host has no sandbox."""
    try:
        if item.answers:
            return await _measure_answers(item, task, backend, judge)
        verifier = get_verifier(task.verifier, backend, judge)
        own_seed = f"{seed} {task.key}"  # a task's mutants do not depend on which others are measured
        check = StrongCheck(task, backend, seed=own_seed, num_inputs=num_inputs)
        return await _measure_mutants(item, task, verifier, check)
    except (TaskError, MutationError, NoResult) as error:
        return TaskMeasured(task_id=item.task_id, error=storable(str(error))[:MAX_MESSAGE])


async def _measure_mutants(
    item: MeasureItem, task: TaskBundle, verifier: VerifierRunner, check: StrongCheck
) -> TaskMeasured:
    function = check.function
    mutants = draw_mutants(function.reference, function.entry_point, seed=check.seed, limit=item.num_mutants)
    cases = await check.prepare()
    outcomes = [await _judge_mutant(n, mutant, task, verifier, check, cases) for n, mutant in enumerate(mutants)]
    return TaskMeasured(
        task_id=item.task_id,
        outcomes=outcomes,
        verifier_hash=verifier.hash,
        num_possible=len(all_mutants(function.reference, function.entry_point)),
        num_inputs=len(cases.cases),
        num_refused=cases.num_refused,
    )


async def _judge_mutant(
    number: int, mutant: Mutant, task: TaskBundle, verifier: Verifier, check: StrongCheck, cases: Cases
) -> CandidateOutcome:
    result = await _ask(verifier, task, f"```python\n{mutant.code.rstrip()}\n```")
    outcome = _outcome(number, mutant.operator, mutant.code, result)
    outcome.line = mutant.line
    try:
        found = await check.compare(cases, mutant.code)
    except NoResult as error:
        outcome.got = storable(f"the stronger check gave no result: {error}")[:MAX_MESSAGE]
        return outcome
    outcome.num_inputs, outcome.num_different = found.num_compared, found.num_value + found.num_type
    if found.first:
        outcome.truth, outcome.difference = WRONG, found.first.get("kind", "value")
        outcome.input, outcome.expected, outcome.got = (
            storable(found.first.get(name, "")) for name in ("input", "expected", "got")
        )
    elif found.complete and found.num_compared >= MIN_INPUTS:
        outcome.truth = RIGHT
    return outcome


async def _measure_answers(
    item: MeasureItem, task: TaskBundle, backend: SandboxBackend, judge: JudgeEndpoint | None
) -> TaskMeasured:
    measured = get_verifier(item.verifier or task.verifier, backend, judge)
    truth = get_verifier(task.verifier, backend, judge)
    outcomes = []
    for number, answer in enumerate(item.answers):
        outcome = _outcome(number, "answer", answer, await _ask(measured, task, answer))
        said = await _ask(truth, task, answer)
        if said.verdict in (Verdict.PASS, Verdict.FAIL):
            outcome.truth = RIGHT if said.verdict == Verdict.PASS else WRONG
            outcome.difference = "" if said.verdict == Verdict.PASS else "verdict"
        outcome.input = storable(answer)[:MAX_MESSAGE]
        outcome.expected = storable(f"{said.verdict} {said.reason_code}: {said.message}".rstrip(": "))[:MAX_MESSAGE]
        outcomes.append(outcome)
    return TaskMeasured(
        task_id=item.task_id, outcomes=outcomes, verifier_hash=measured.hash, num_possible=len(item.answers)
    )


async def _ask(verifier: Verifier, task: TaskBundle, answer: str) -> VerifierResult:
    """A verdict by the real path. A host without sandboxes is no verdict on anything."""
    result = await verifier.verify(task, answer_episode(task, answer))
    if result.reason_code == ReasonCode.SANDBOX_UNAVAILABLE:
        raise WorkerError(Boundary.INFRASTRUCTURE, result.message)
    return result


def _outcome(number: int, origin: str, text: str, result: VerifierResult) -> CandidateOutcome:
    return CandidateOutcome(
        number=number, origin=origin, text=text, verdict=str(result.verdict), reason_code=str(result.reason_code),
        message=storable(result.message)[:MAX_MESSAGE], truth=UNDECIDED,
    )  # fmt: skip
