"""Probes a task: shortcut policies are played for real, stored episodes are judged again; verdicts are compared."""

from gpu_workers.contracts.enums import Boundary, Verdict
from gpu_workers.contracts.groups import EpisodeRecord, TurnRecord, VerdictRecord
from gpu_workers.contracts.replays import ProbeItem, ProbeJob, ShortcutVerdict, StoredVerdict, TaskProbe
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.store import StoreError
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.rollout.group import GroupServices
from gpu_workers.rollout.playback import TextSession, play
from gpu_workers.rollout.reproduce import ReplaySession, load_stored
from gpu_workers.verifiers.shortcuts import shortcut_turns

_OUTSIDE = frozenset({Boundary.INFRASTRUCTURE, Boundary.ENGINE})


class ShortcutSession(TextSession):
    """Writes one text; where that called a tool, answers with what the tool said."""

    def __init__(self, task: TaskBundle, text: str) -> None:
        super().__init__(task.prompt)
        self._text: str | None = text

    def next_turn(self) -> TurnRecord:
        text = self.messages[-1].content if self._text is None else self._text
        self._text = None
        return TurnRecord(role="assistant", text=text, finish_reason="stop")


async def probe_task(item: ProbeItem, job: ProbeJob, services: GroupServices) -> TaskProbe:
    """Every shortcut and every stored episode, `repeats` times each. What cannot be measured is left out, and said."""
    probe = TaskProbe(task_id=item.task_id)
    try:
        task = services.load_task(item.task)
        turns = shortcut_turns(task, constant=job.constant, tool=job.tool)
        for policy, text in sorted(turns.items()):
            records = [await _play(task, ShortcutSession(task, text), services) for _ in range(job.repeats)]
            probe.shortcuts.append(_shortcut(task, policy, records))
        for episode in item.stored:
            stored = load_stored(episode, item.task, services.store)
            canary = stored.sandbox.canary
            again = [_words(await _play(task, ReplaySession(stored), services, canary)) for _ in range(job.repeats)]
            probe.stored.append(StoredVerdict(episode_id=episode.episode_id, stored=_words(stored), again=again))
    except (WorkerError, StoreError) as error:
        probe.error = str(error)
    return probe


async def _play(task: TaskBundle, session: TextSession, services: GroupServices, canary: str = "") -> EpisodeRecord:
    record = await play(task, session, services, canary=canary)
    if record.verdict is Verdict.ERROR and record.boundary in _OUTSIDE:
        raise WorkerError(record.boundary or Boundary.INFRASTRUCTURE, record.message)
    return record


def _shortcut(task: TaskBundle, policy: str, records: list[EpisodeRecord]) -> ShortcutVerdict:
    """The best verdict of the repeats: one pass in several is a pass that a policy can find."""
    said = [_verifiers_word(task, record) for record in records]
    best = max(said, key=lambda word: (word.verdict is Verdict.PASS, word.score or 0.0))
    return ShortcutVerdict(
        policy=policy,
        verdict=str(best.verdict),
        score=best.score,
        reason_code=str(best.reason_code),
        agreed=len({(word.verdict, word.score) for word in said}) == 1,
    )


def _verifiers_word(task: TaskBundle, record: EpisodeRecord) -> VerdictRecord:
    """What the verifier said before a tamper detector failed the episode: the verifier is what is measured."""
    if record.verification is not None:
        return record.verification
    kind = task.verifier.kind
    return VerdictRecord(kind=kind, verdict=record.verdict, score=record.reward, reason_code=record.reason_code)


def _words(record: EpisodeRecord) -> str:
    return str(record.verdict) if record.reward is None else f"{record.verdict} {record.reward:g}"
