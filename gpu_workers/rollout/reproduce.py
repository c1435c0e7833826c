"""Plays a stored episode again: its own turns, a fresh sandbox, the verifier; then compares with what was stored."""

import time
from itertools import zip_longest

import msgspec

from gpu_workers.contracts.enums import Boundary, StopReason
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, ToolCallRecord, TurnRecord
from gpu_workers.contracts.replays import (
    CallComparison,
    EpisodeReproduced,
    ReproduceJob,
    StoredEpisode,
    call_digest,
    outcome_digest,
)
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.contracts.tasks import Message
from gpu_workers.rollout.group import GroupServices
from gpu_workers.rollout.playback import TextSession, play
from gpu_workers.sessions.session import ContextFullError

SHOWN_CHARACTERS = 2000  # of a tool output in the report

# A replay's failure at these boundaries says nothing about the task.
_OUTSIDE = frozenset({Boundary.INFRASTRUCTURE, Boundary.ENGINE})


class ReplaySession(TextSession):
    """Gives the turns of a stored episode in their order.

    `left_path` is set when the episode asks for a turn that was never sampled.
    """

    def __init__(self, record: EpisodeRecord) -> None:
        first = next((i for i, turn in enumerate(record.turns) if turn.finish_reason), len(record.turns))
        super().__init__([Message(role=turn.role, content=turn.text) for turn in record.turns[:first]])
        self._to_come = [turn for turn in record.turns if turn.finish_reason]
        self._ended_full = record.stop_reason is StopReason.LENGTH
        self.left_path = False

    def next_turn(self) -> TurnRecord:
        if not self._to_come:
            self.left_path = not self._ended_full
            raise ContextFullError("the stored episode has no further turn")
        return self._to_come.pop(0)

    @property
    def num_turns_left(self) -> int:
        """Stored turns that the replay did not come to."""
        return len(self._to_come)


async def reproduce(job: ReproduceJob, services: GroupServices) -> EpisodeReproduced:
    """Play, judge and compare. What stands in the way comes back as `error`."""
    started = time.monotonic()
    report = EpisodeReproduced(job_id=job.job_id)
    try:
        stored = load_stored(job.episode, job.task, services.store)
        task = services.load_task(job.task)
        session = ReplaySession(stored)
        record = await play(task, session, services, index=stored.index, canary=stored.sandbox.canary)
        if record.boundary in _OUTSIDE and record.reward is None:
            raise WorkerError(record.boundary or Boundary.INFRASTRUCTURE, record.message)
        compare(report, job.task.rsplit("/", 1)[-1], stored, record, session)
    except (WorkerError, StoreError) as error:
        report.error = str(error)
    report.duration_seconds = time.monotonic() - started
    return report


def load_stored(episode: StoredEpisode, task_key: str, store: ObjectStore) -> EpisodeRecord:
    """The stored episode, after a look that it was one of this very task. Raises StoreError, WorkerError."""
    try:
        transcript = GroupTranscript.decode(store.get(episode.transcript))
    except msgspec.DecodeError as error:
        raise WorkerError(Boundary.INFRASTRUCTURE, f"transcript {episode.transcript}: {error}") from error
    task_hash = task_key.rsplit("/", 1)[-1]
    if transcript.task_hash != task_hash:
        message = f"the episode was played on task {transcript.task_hash[:12]}, not on {task_hash[:12]}"
        raise WorkerError(Boundary.ENVIRONMENT, message, retryable=False)
    for record in transcript.episodes:
        if record.index == episode.index:
            return record
    raise WorkerError(Boundary.INFRASTRUCTURE, f"transcript {episode.transcript} lacks episode {episode.index}")


def compare(
    report: EpisodeReproduced, task_hash: str, stored: EpisodeRecord, now: EpisodeRecord, session: ReplaySession
) -> None:
    """Fill the report: the verdict now, tool calls one by one, both digests."""
    then_calls = [turn.tool_call for turn in stored.turns if turn.tool_call is not None]
    now_calls = [turn.tool_call for turn in now.turns if turn.tool_call is not None]
    report.calls = [_compare_call(then, call) for then, call in zip_longest(then_calls, now_calls)]
    report.left_path = session.left_path or bool(session.num_turns_left)
    hashes = {record.verification.verifier_hash for record in (stored, now) if record.verification}
    report.verifier_changed = len(hashes - {""}) > 1
    report.verdict, report.reward = str(now.verdict), now.reward
    report.reason_code, report.message, report.evidence = str(now.reason_code), now.message, now.evidence
    report.stored_digest, report.digest = outcome_digest(task_hash, stored), outcome_digest(task_hash, now)
    report.sandbox = now.sandbox


def _compare_call(then: ToolCallRecord | None, now: ToolCallRecord | None) -> CallComparison:
    either = then or now
    assert either is not None
    comparison = CallComparison(name=either.name, arguments=either.arguments)
    if then is not None:
        comparison.stored, comparison.stored_digest = then.result[:SHOWN_CHARACTERS], call_digest(then)
    if now is not None:
        comparison.reproduced, comparison.digest = now.result[:SHOWN_CHARACTERS], call_digest(now)
    comparison.same = comparison.stored_digest == comparison.digest
    return comparison
