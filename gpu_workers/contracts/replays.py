"""Wire types of replays: an episode reproduced from its stored actions, tasks probed with shortcut answers."""

import hashlib
from typing import Any

import msgspec

from gpu_workers.contracts.groups import EpisodeRecord, SandboxRecord, ToolCallRecord


class StoredEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """Where an episode's actions lie: episode `index` of the GroupTranscript at object key `transcript`."""

    episode_id: str
    transcript: str
    index: int


class ReproduceJob(msgspec.Struct, frozen=True, kw_only=True):
    """Play one stored episode again in a fresh sandbox. `task` is the object key of its TaskBundle."""

    job_id: str
    task: str
    episode: StoredEpisode


class CallComparison(msgspec.Struct, kw_only=True):
    """One tool call, then and now. `same`: outcome and whole output agree; the texts are cut, the digests are not."""

    name: str
    arguments: dict[str, Any] = {}
    same: bool = True
    stored: str = ""
    stored_digest: str = ""
    reproduced: str | None = None  # None: the replay did not come to this call
    digest: str = ""


class EpisodeReproduced(msgspec.Struct, kw_only=True):
    """kind "reproduced". With an `error` nothing was concluded: a part outside task and verifier failed.

    `digest` covers task, tool calls with their outputs, verdict, reward and reason; `stored_digest` the same of the
    stored episode. `left_path`: the replay left the stored actions, e.g. because a call that had timed out came back.
    `verifier_changed`: its hash is another than the one that the episode was stored with.
    """

    job_id: str
    error: str = ""
    verdict: str = ""
    reward: float | None = None
    reason_code: str = ""
    message: str = ""
    evidence: dict[str, Any] = {}
    calls: list[CallComparison] = []
    left_path: bool = False
    verifier_changed: bool = False
    digest: str = ""
    stored_digest: str = ""
    sandbox: SandboxRecord = msgspec.field(default_factory=SandboxRecord)
    duration_seconds: float = 0.0


class ProbeItem(msgspec.Struct, frozen=True, kw_only=True):
    """One task, and the stored episodes of it that are judged again."""

    task_id: str
    task: str  # object key of the TaskBundle
    stored: list[StoredEpisode] = []


class ProbeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Judge what shortcut policies answer, and stored episodes again. `constant`: the answer that one policy always
    gives; `tool`: the tool that one policy always calls; empty: there is none."""

    job_id: str
    report_id: str
    items: list[ProbeItem]
    constant: str = ""
    tool: str = ""
    repeats: int = 2


class ShortcutVerdict(msgspec.Struct, kw_only=True):
    """What the task's own verifier said of a shortcut policy. `agreed`: every repeat said the same."""

    policy: str
    verdict: str
    score: float | None = None
    reason_code: str = ""
    agreed: bool = True


class StoredVerdict(msgspec.Struct, kw_only=True):
    """Verdicts of one stored episode: as stored, then of every repeat (`verdict score`)."""

    episode_id: str
    stored: str
    again: list[str] = []

    @property
    def agreed(self) -> bool:
        return all(verdict == self.stored for verdict in self.again)


class TaskProbe(msgspec.Struct, kw_only=True):
    """`error`: the task could not be probed, or only in part; what is missing counts as not measured."""

    task_id: str
    shortcuts: list[ShortcutVerdict] = []
    stored: list[StoredVerdict] = []
    error: str = ""


class TasksProbed(msgspec.Struct, kw_only=True):
    """kind "probed"."""

    job_id: str
    report_id: str
    probes: list[TaskProbe] = []


def outcome_digest(task_hash: str, record: EpisodeRecord) -> str:
    """SHA-256 over what a reproduction must reproduce: the calls with their outputs, the verdict and its reward."""
    calls = [call_digest(turn.tool_call) for turn in record.turns if turn.tool_call is not None]
    outcome = [task_hash, calls, str(record.verdict), record.reward, str(record.reason_code)]
    return hashlib.sha256(msgspec.json.encode(outcome)).hexdigest()


def call_digest(call: ToolCallRecord) -> str:
    """SHA-256 over a call's name, arguments, output and outcome; its duration is no part of it."""
    content = [call.name, call.arguments, call.result, call.ok, call.invalid]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
