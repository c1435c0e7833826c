"""The gate of a task before any run may use it: the reference passes, bad answers fail, repeats agree."""

from gpu_workers.contracts.enums import UNSCORED_VERDICTS, Boundary, ReasonCode, Verdict, VerifierKind
from gpu_workers.contracts.messages import TaskCheck
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, Verifier, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.tools.declared import ToolError
from gpu_workers.tools.gate import check_tools
from gpu_workers.verifiers.detectors.runtime import SEEN
from gpu_workers.verifiers.judge import JudgeEndpoint
from gpu_workers.verifiers.reference import answer_episode, reference_episode
from gpu_workers.verifiers.registry import audit_verifier, get_verifier
from gpu_workers.verifiers.results import TaskError
from gpu_workers.verifiers.shortcuts import (
    CONSTANT_STUBS,
    EARNS_NOTHING,
    IN_CHECK,
    ONE_FIELD,
    ORDER_STUBS,
    gives_parts,
    structure_episodes,
    stub_episodes,
)

RUNS_CODE = frozenset({VerifierKind.TESTS, VerifierKind.PROGRAM, VerifierKind.SCRIPT, VerifierKind.COMPOSITE})
BELIEVES_EXITS = (
    ": the check believes an exit code of a process that runs the candidate's code. Start Python by its name (python3"
    " check.py, not /usr/bin/python3), or let the check write down itself what it found, or use the kind tests"
)

EXECUTES = (
    "the program executes or imports the candidate's code in its own process, where that code can read the expected"
    " answer and please every comparison. Call it by open_candidate(files).module(name) or run_python of"
    " ratchet_verifier, or use the kind tests: there it runs in a process apart"
)
TAKES_ORDERS = (
    ": a loop of the check takes the exception for its own end. Call the candidate's code in a process apart (kind"
    " tests, open_candidate), or collect its results before they are compared"
)


async def check_task(
    task: TaskBundle,
    backend: SandboxBackend,
    repeats: int = 3,
    *,
    bad_repeats: int = 0,
    task_id: str = "",
    judge: JudgeEndpoint | None = None,
) -> TaskCheck:
    """Judge a task's own reference `repeats` times, the empty answer and every known-bad answer `bad_repeats` times.

    `bad_repeats` 0: as often as the reference; a contract may ask for more of both. `ok` False names the first thing
    that is wrong. An audit verifier must pass the reference too. Code that answers a constant or its argument, raises
    the same whatever it is asked, or exits with 0 must fail, and but for nan and infinity without credit; so must what
    is left of a JSON answer without its content. A program that executes the candidate's code itself is refused. Raises
    WorkerError(INFRASTRUCTURE) when this host has no sandbox.
    """
    name = task_id or task.key
    try:
        verifier = get_verifier(task.verifier, backend, judge)
        audit = audit_verifier(task, backend, judge)
        backend.create(task.contract)
        if not task.terminal_call and task.hosted is None:
            await check_tools(task, backend)
        reference = await reference_episode(task, backend)
    except (TaskError, ToolError) as error:
        return TaskCheck(task_id=name, ok=False, reason_code=ReasonCode.TASK_INVALID, message=str(error))
    except WorkerError as error:
        if error.retryable or "SANDBOX_UNAVAILABLE" in str(error):
            raise
        return TaskCheck(task_id=name, ok=False, reason_code=ReasonCode.TASK_INVALID, message=str(error))
    trials = [("the reference", reference, Verdict.PASS), ("the empty answer", answer_episode(task, ""), Verdict.FAIL)]
    for index, answer in enumerate(task.known_bad):
        trials.append((f"known_bad[{index}]", answer_episode(task, answer), Verdict.FAIL))
    repeats = max(1, repeats, task.contract.determinism_runs)
    bad_repeats = max(bad_repeats or repeats, task.contract.determinism_runs)
    for what, episode, wanted in trials:
        times = repeats if wanted == Verdict.PASS else bad_repeats
        if problem := await _try(verifier, task, what, episode, wanted, times):
            return TaskCheck(task_id=name, ok=False, reason_code=problem[0], message=problem[1])
    if audit is not None and (problem := await _try(audit, task, "the reference", reference, Verdict.PASS, repeats)):
        return TaskCheck(task_id=name, ok=False, reason_code=problem[0], message=f"audit verifier: {problem[1]}")
    if said := await _try_stubs(verifier, task, reference):
        return TaskCheck(task_id=name, ok=False, reason_code=ReasonCode.TASK_INVALID, message=said)
    return TaskCheck(task_id=name, ok=True)


async def _try_stubs(verifier: Verifier, task: TaskBundle, reference: FinishedEpisode) -> str:
    """What is wrong with the verdicts of code that does nothing of the task; empty where nothing is."""
    if task.verifier.kind not in RUNS_CODE or task.hosted is not None:
        return ""
    for what, episode in stub_episodes(task, reference).items():
        result = await _verdict(verifier, task, episode)
        if IN_CHECK in result.evidence.get(SEEN, {}):
            return EXECUTES
        if result.verdict == Verdict.PASS:
            why = BELIEVES_EXITS if "with 0" in what else TAKES_ORDERS if what in ORDER_STUBS else ""
            return f"{what} should fail, but it passes{why}"
        if result.score and what in EARNS_NOTHING and (what not in CONSTANT_STUBS or gives_parts(task.verifier)):
            named = [part.name for part in result.components if part.verdict == Verdict.PASS][:5]
            return f"{what} earns {result.score:g}; doing nothing must earn 0 (parts that ask nothing: {named})"
    return await _try_structures(verifier, task, reference)


async def _try_structures(verifier: Verifier, task: TaskBundle, reference: FinishedEpisode) -> str:
    """What is wrong with the verdicts of answers that lack what the reference's structure holds."""
    alone: list[str] = []
    for what, episode in structure_episodes(reference).items():
        result = await _verdict(verifier, task, episode)
        if what.startswith(ONE_FIELD):
            alone += [what] if result.verdict == Verdict.PASS else []
            if len(alone) > 1:
                return f"{what} passes, and so does {alone[0]}: an answer that lacks the other fields must fail"
        elif result.verdict == Verdict.PASS or result.score:
            return f"{what} earns {result.score:g}; an answer that says nothing must earn 0"
    return ""


async def _verdict(verifier: Verifier, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
    result = await verifier.verify(task, episode)
    if result.reason_code == ReasonCode.SANDBOX_UNAVAILABLE:
        raise WorkerError(Boundary.INFRASTRUCTURE, result.message)
    return result


async def _try(
    verifier: Verifier, task: TaskBundle, what: str, episode: FinishedEpisode, wanted: Verdict, repeats: int
) -> tuple[ReasonCode, str] | None:
    """Reason and message of what is wrong with one trial; None when it is as wanted every time."""
    results: list[VerifierResult] = []
    is_empty = not episode.answer
    for _ in range(repeats):
        result = await verifier.verify(task, episode)
        if result.reason_code == ReasonCode.SANDBOX_UNAVAILABLE:
            raise WorkerError(Boundary.INFRASTRUCTURE, result.message)
        results.append(result)
    verdicts = {(result.verdict, result.score) for result in results}
    if len(verdicts) > 1:
        seen = ", ".join(f"{result.verdict} {result.score}" for result in results)
        return ReasonCode.VERIFIER_FLAKY, f"{what}: {repeats} repeats disagree: {seen}"
    result = results[0]
    if result.verdict == wanted and (wanted == Verdict.PASS or not result.score or not is_empty):
        return None
    if result.verdict == wanted:
        return ReasonCode.TASK_INVALID, f"{what} earns {result.score:g}; doing nothing must earn 0"
    said = f"{result.reason_code} {result.message}".strip()
    if result.verdict in UNSCORED_VERDICTS:
        return ReasonCode(result.reason_code), f"{what}: the verifier gave no verdict: {said}"
    return ReasonCode.TASK_INVALID, f"{what} should {wanted}, but the verdict is {result.verdict}: {said}"
