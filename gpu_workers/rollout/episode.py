"""One episode: turns until it ends, tool calls in its environment, the verdict outside it."""

import asyncio
import contextlib
import hashlib
import logging
import time
from dataclasses import dataclass, field

import msgspec

from gpu_workers.contracts.enums import Boundary, StopReason
from gpu_workers.contracts.groups import EpisodeRecord, ToolCallRecord, TurnRecord, VerdictRecord
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.seams import Environment, FinishedEpisode, RolloutEngine, Verifier, WorkerError
from gpu_workers.contracts.tasks import Message, TaskBundle
from gpu_workers.rollout.arguments import check_call
from gpu_workers.rollout.failures import apply_timeout, apply_verdict, blame, blame_deadline, verdict_record
from gpu_workers.rollout.running import RunningGroup
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.session import ContextFullError, SampledTurn, TokenSession
from gpu_workers.sessions.tool_calls import AssistantTurn, TurnKind, read_turn
from gpu_workers.tools.records import cut_short, refused
from gpu_workers.verifiers.detectors.evaluate import apply_flags, find_flags
from gpu_workers.verifiers.reference import sees_files

logger = logging.getLogger(__name__)
OBSERVATION_CHARACTERS = 4000  # of a tool result shown to the policy
ABORT_SECONDS = 2.0


@dataclass(frozen=True)
class EpisodeSetup:
    """What the episodes of one group share. `deadline` is in the event loop's time."""

    task: TaskBundle
    template: ChatTemplate
    engine: RolloutEngine
    policy: PolicyRef
    sampling: Sampling
    verifier: Verifier
    deadline: float
    request_prefix: str
    audit: Verifier | None = None
    audit_share: float = 1.0  # of the episodes
    group: RunningGroup | None = None  # through which it hears of newer versions of the policy


@dataclass
class Episode:
    """A finished episode: its record and its exact tokens."""

    record: EpisodeRecord
    session: TokenSession


@dataclass
class _Progress:
    """What has happened so far; survives a failure half-way."""

    stop_reason: StopReason = StopReason.ERROR
    answer: str = ""
    num_tool_calls: int = 0
    num_invalid_calls: int = 0
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0
    tool_seconds: float = 0.0
    in_flight: str = ""  # request id the engine is working on
    calls: dict[int, ToolCallRecord] = field(default_factory=dict)  # index in session.messages -> call


async def run_episode(setup: EpisodeSetup, environment: Environment, index: int) -> Episode:
    """Run, close and judge one episode. A failure outside the policy is data in the record, never a raise."""
    session = TokenSession(setup.template, setup.task.conversation(setup.policy.num_shots), setup.policy)
    return await play_episode(setup, environment, session, index)


async def play_episode(setup: EpisodeSetup, environment: Environment, session: TokenSession, index: int) -> Episode:
    """As `run_episode`, with the session that gives the policy's turns: sampled ones, or stored ones again."""
    started = time.monotonic()
    sampling = msgspec.structs.replace(setup.sampling, seed=setup.sampling.seed + index)
    record = EpisodeRecord(index=index, seed=sampling.seed, stop_reason=StopReason.ERROR)
    progress = _Progress()
    files: dict[str, bytes] = {}
    try:
        async with asyncio.timeout_at(setup.deadline):
            await environment.reset()
            await _converse(setup, environment, session, sampling, progress, f"{setup.request_prefix}.{index}")
            if sees_files(setup.task):
                files = await _workspace(environment, progress)
    except WorkerError as error:
        progress.stop_reason = StopReason.ERROR
        blame(record, error)
    except TimeoutError:
        progress.stop_reason = StopReason.ERROR
        blame_deadline(record)
    except Exception as error:  # the edge: whatever one episode trips over must not take its siblings along
        logger.exception("episode %s of %s broke its worker", index, setup.request_prefix)
        progress.stop_reason = StopReason.ERROR
        blame(record, WorkerError(Boundary.INFRASTRUCTURE, f"the episode broke: {type(error).__name__}: {error}"))
    finally:
        await _clean_up(setup.engine, environment, progress)
    _fill(record, session, progress, environment)
    if progress.stop_reason is not StopReason.ERROR:
        await _judge(setup, record, session, progress, files)
        apply_flags(setup.task, record, find_flags(setup.task, record, files))
    record.total_seconds = time.monotonic() - started
    return Episode(record=record, session=session)


async def _converse(
    setup: EpisodeSetup,
    environment: Environment,
    session: TokenSession,
    sampling: Sampling,
    progress: _Progress,
    request_id: str,
) -> None:
    task = setup.task
    for turn in range(task.max_turns):
        progress.in_flight = f"{request_id}.{turn}"
        try:
            sampled = await session.generate_turn(
                setup.engine, sampling, request_id=progress.in_flight, moves=setup.group
            )
        except ContextFullError:
            progress.in_flight, progress.stop_reason = "", StopReason.LENGTH
            return
        progress.in_flight = ""
        _count(progress, sampled)
        if not sampled.complete:
            progress.stop_reason = StopReason.LENGTH
            return
        reading = read_turn(sampled.text, task.tools, task.tool_format)
        if task.terminal_call or reading.kind is TurnKind.ANSWER:
            _answer(task, reading, sampled, progress)
            return
        if turn == task.max_turns - 1:
            progress.stop_reason = StopReason.TURN_LIMIT
            return
        call = await _call_tool(setup, environment, reading, progress)
        if progress.stop_reason is StopReason.TIMEOUT:
            end = session.turns[-1].token_stop  # the policy never reads of it: a turn without tokens
            turn_record = TurnRecord(role="tool", text="", token_start=end, token_stop=end, tool_call=call)
            session.turns.append(turn_record)
            return
        progress.calls[len(session.messages)] = call
        session.append([Message(role="tool", content=observation(call))], call)


def _count(progress: _Progress, sampled: SampledTurn) -> None:
    progress.engine_seconds += sampled.engine_seconds
    progress.queue_seconds += sampled.queue_seconds


def _answer(task: TaskBundle, reading: AssistantTurn, sampled: SampledTurn, progress: _Progress) -> None:
    progress.stop_reason = StopReason.ANSWERED
    progress.answer = sampled.text
    if task.terminal_call and reading.kind is not TurnKind.ANSWER:
        progress.num_tool_calls = 1
        progress.num_invalid_calls = int(reading.call is None or bool(check_call(reading.call, task.tools).error))


async def _call_tool(
    setup: EpisodeSetup, environment: Environment, reading: AssistantTurn, progress: _Progress
) -> ToolCallRecord:
    """One call in the environment; sets the stop reason when the episode's own time for tools is used up.

    Only tool time counts against that limit: waiting for a busy engine is not the policy's doing.
    """
    progress.num_tool_calls += 1
    checked = None if reading.call is None else check_call(reading.call, setup.task.tools)
    if checked is None or checked.error:
        progress.num_invalid_calls += 1
        if checked is None:
            return refused(reading.name, {}, reading.error)
        return refused(checked.name, checked.arguments, checked.error)
    limit = setup.task.contract.limits.episode_timeout_seconds - progress.tool_seconds
    started = time.monotonic()
    step = asyncio.ensure_future(environment.step(checked.name, checked.arguments))
    try:
        done, _ = await asyncio.wait({step}, timeout=max(limit, 0.0))
    finally:
        if not step.done():
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await step
        progress.tool_seconds += time.monotonic() - started
    if not done:
        progress.stop_reason = StopReason.TIMEOUT
        return cut_short(checked.name, checked.arguments, time.monotonic() - started)
    call = step.result()
    progress.num_invalid_calls += int(call.invalid)
    return call


def observation(call: ToolCallRecord) -> str:
    """What the policy reads of a call."""
    text = call.result if call.ok or call.result else f"Error: {call.error or 'the call failed'}"
    if len(text) > OBSERVATION_CHARACTERS:
        call.truncated = True
        text = text[:OBSERVATION_CHARACTERS] + "\n[truncated]"
    return text


async def _clean_up(engine: RolloutEngine, environment: Environment, progress: _Progress) -> None:
    """Stop what is still running for this episode, also when it was cancelled."""
    if progress.in_flight:
        with contextlib.suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await engine.abort(progress.in_flight)
    await environment.close()


def _fill(record: EpisodeRecord, session: TokenSession, progress: _Progress, environment: Environment) -> None:
    sampled = [value for value, m in zip(session.logprobs, session.mask, strict=True) if m]
    record.stop_reason = progress.stop_reason
    record.answer = progress.answer
    record.turns = session.turns
    record.token_texts = session.token_texts()
    record.num_turns = session.num_assistant_turns
    record.num_tool_calls = progress.num_tool_calls
    record.num_invalid_calls = progress.num_invalid_calls
    record.num_prompt_tokens = session.num_prompt_tokens
    record.num_sampled_tokens = len(sampled)
    record.num_total_tokens = len(session.ids)
    record.min_version, record.max_version = session.version_range()
    record.mean_logprob = sum(sampled) / len(sampled) if sampled else 0.0
    record.engine_seconds = progress.engine_seconds
    record.queue_seconds = progress.queue_seconds
    record.tool_seconds = progress.tool_seconds
    record.sandbox = environment.record


async def _workspace(environment: Environment, progress: _Progress) -> dict[str, bytes]:
    """Files at the end. A policy that ran out of time has failed, whatever has become of its sandbox."""
    try:
        return await environment.state()
    except WorkerError:
        if progress.stop_reason is not StopReason.TIMEOUT:
            raise
        return {}


async def _judge(
    setup: EpisodeSetup, record: EpisodeRecord, session: TokenSession, progress: _Progress, files: dict[str, bytes]
) -> None:
    """The verdict, and beside it that of the audit verifier, which decides nothing."""
    if progress.stop_reason is StopReason.TIMEOUT:
        apply_timeout(record)
        return
    finished = FinishedEpisode(
        answer=progress.answer,
        messages=_messages(setup.task, session, progress),
        files=files,
        stop_reason=str(progress.stop_reason),
    )
    started = time.monotonic()
    audit = asyncio.create_task(_audit(setup, record.index, finished))
    try:
        result = await setup.verifier.verify(setup.task, finished)
    except WorkerError as error:
        blame(record, error)
        record.verification = verdict_record(setup.task.verifier.kind, error)
    else:
        apply_verdict(record, result)
        record.verification = verdict_record(setup.task.verifier.kind, result)
    record.verifier_seconds = time.monotonic() - started
    record.audit = await audit


async def _audit(setup: EpisodeSetup, index: int, finished: FinishedEpisode) -> VerdictRecord | None:
    """What the audit verifier says, where the task has one and the episode is in its share. It can fail nobody."""
    spec = setup.task.audit_verifier
    if spec is None or setup.audit is None or not in_share(f"{setup.request_prefix}.{index}", setup.audit_share):
        return None
    try:
        return verdict_record(spec.kind, await setup.audit.verify(setup.task, finished))
    except WorkerError as error:
        return verdict_record(spec.kind, error)


def in_share(name: str, share: float) -> bool:
    """Whether a name falls into a share of all names: the same always, and as good as random."""
    return int.from_bytes(hashlib.sha256(f"audit {name}".encode()).digest()[:7], "big") < share * 2**56


def _messages(task: TaskBundle, session: TokenSession, progress: _Progress) -> list[dict[str, object]]:
    """The conversation as a verifier sees it: the prompt without worked examples, then the episode."""
    messages: list[dict[str, object]] = [{"role": m.role, "content": m.content} for m in task.prompt]
    num_prompt = next((i for i, turn in enumerate(session.turns) if turn.finish_reason), len(session.messages))
    for index, message in enumerate(session.messages[num_prompt:], start=num_prompt):
        entry: dict[str, object] = {"role": message.role, "content": message.content}
        call = progress.calls.get(index)
        if call is not None:
            entry |= {"name": call.name, "arguments": call.arguments, "ok": call.ok}
        messages.append(entry)
    return messages
