"""What lies in the object store of a group: turns, sandbox log, and the exact tokens."""

from collections.abc import Iterator
from typing import Any

import msgspec

from apps.runs.models import Episode, Group, Run
from apps.runs.selectors import run_episodes
from gpu_workers.contracts.groups import EpisodeRecord, GroupFileError, GroupTranscript, decode_group, jsonable
from gpu_workers.contracts.store import StoreError
from ratchet.problems import Problem
from ratchet.store import get_store

_CHUNK = 200


def load_transcript(group: Group) -> GroupTranscript:
    """All turns and sandbox logs of a group. Raises Problem 404/502 where they are missing or damaged."""
    if not group.transcript:
        raise Problem(
            "no_transcript", 404, f"Group {group.id} has no transcript: it is {group.outcome or group.state}."
        )
    try:
        return GroupTranscript.decode(get_store().get(group.transcript))
    except (StoreError, msgspec.DecodeError) as error:
        raise Problem("transcript_unreadable", 502, f"The transcript of group {group.id}: {error}") from error


def episode_transcript(episode: Episode) -> EpisodeRecord:
    """One episode with its turns, tool calls, verdict and sandbox log."""
    for record in load_transcript(episode.group).episodes:
        if record.index == episode.index:
            return record
    raise Problem("no_transcript", 404, f"The transcript of group {episode.group_id} lacks episode {episode.index}.")


def episode_tokens(episode: Episode) -> dict[str, list[Any]]:
    """Ids, texts, loss mask, behaviour log-probs (null where not sampled) and policy versions, one per token."""
    group = episode.group
    if not group.uri:
        raise Problem("no_tokens", 404, f"Group {group.id} has no token file.")
    try:
        tokens = decode_group(get_store().get(group.uri))[episode.index]
    except (StoreError, GroupFileError, IndexError, KeyError, ValueError) as error:
        raise Problem("tokens_unreadable", 502, f"The token file of group {group.id}: {error}") from error
    sampled = [bool(flag) for flag in tokens.mask.tolist()]
    return {
        "ids": tokens.tokens.tolist(),
        "texts": episode_transcript(episode).token_texts,
        "mask": tokens.mask.tolist(),
        "logprobs": [value if flag else None for value, flag in zip(tokens.logprobs.tolist(), sampled, strict=True)],
        "versions": [value if flag else None for value, flag in zip(tokens.versions.tolist(), sampled, strict=True)],
    }


def export_episodes(run: Run, *, transcripts: bool) -> Iterator[bytes]:
    """The run's episodes as JSON lines, in order of admission; nothing is held in memory but one group."""
    group_id, records = None, {}
    for episode in run_episodes(run).iterator(chunk_size=_CHUNK):
        line = _line(episode)
        if transcripts:
            if episode.group_id != group_id:
                group_id, records = episode.group_id, _records(episode.group)
            line["transcript"] = records.get(episode.index)
        yield msgspec.json.encode(line) + b"\n"


def _records(group: Group) -> dict[int, Any]:
    try:
        return {record.index: jsonable(record) for record in load_transcript(group).episodes}
    except Problem:
        return {}  # the line says null: an export does not end half-way for one lost object


def _line(episode: Episode) -> dict[str, Any]:
    group = episode.group
    fields = [f.name for f in Episode._meta.fields if f.name not in ("id", "group", "created_at")]
    return {
        "id": str(episode.id),
        "group": str(group.id),
        "group_number": group.number,
        "task": group.task.key,
        "task_hash": group.task.task_hash,
        "policy_version": group.policy_version,
        "outcome": group.outcome,
        "step": group.batch.index + 1 if group.batch else None,
        "age": group.age,
        **{name: getattr(episode, name) for name in fields},
        "created_at": episode.created_at,
    }
