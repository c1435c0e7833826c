"""Results of groups: episodes stored once, the group ready, closed, or tried again."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from django.utils import timezone

from apps.runs import states
from apps.runs.events import WARNING, record_event
from apps.runs.models import Episode, Group, GroupState, Outcome
from apps.runs.scheduling.arrival import Arrival, ArrivedEpisode, judge_arrival
from apps.runs.services import groups, installs
from apps.runs.services.lifecycle import advance_soon
from apps.runs.signals import group_stored
from gpu_workers.contracts.enums import UNSCORED_VERDICTS, Boundary, Purpose, Verdict
from gpu_workers.contracts.groups import EpisodeRecord, VerdictRecord
from gpu_workers.contracts.messages import GroupReport, Report
from gpu_workers.contracts.runspec import GROUP_ADVANTAGES, drops_zero_variance, parse_run_spec
from gpu_workers.contracts.text import storable


def apply_group(report: Report) -> str:
    """Store a group's result. Returns the reason of refusal, or an empty string."""
    group = _lock(report.body.get("group_id"))
    if group is None:
        return f"unknown group {report.body.get('group_id')!r}"
    if group.state not in groups.UNFINISHED_STATES:
        return f"group is {group.state} already: {group.outcome or 'an earlier result was stored first'}"
    try:
        body = msgspec.convert(report.body, GroupReport)
    except msgspec.ValidationError as error:
        groups.close_group(group, Outcome.REJECTED, f"unreadable report: {error}", announce=True)
        _advance(group)
        return ""
    if not body.uri:
        refused = _apply_failure(group, body)
        if refused:
            return refused
    else:
        _apply_result(group, body)
    _advance(group)
    return ""


def _lock(group_id: Any) -> Group | None:
    try:
        key = UUID(str(group_id))
    except ValueError:
        return None
    rows = Group.objects.select_for_update(no_key=True, of=("self",))
    return rows.select_related("run__policy__base_model", "task", "project").filter(pk=key).first()


def _advance(group: Group) -> None:
    if group.run is not None:
        advance_soon(group.run)


def _apply_failure(group: Group, body: GroupReport) -> str:
    """Nothing was generated. Only the current dispatch counts: an older one has been sent again already."""
    if group.state != GroupState.RUNNING or body.attempt != group.dispatch:
        return f"failure of dispatch {body.attempt}, but {group.dispatch} is the current one"
    boundary = body.boundary or Boundary.INFRASTRUCTURE
    error = storable(body.error)[:1000] or "no reason given"
    run = group.run
    attempts = parse_run_spec(run.spec).rollout.max_attempts if run else groups.EVALUATION_ATTEMPTS
    group.transcript = body.transcript
    if group.dispatch >= attempts:
        # Nobody trains on them, and none has a reward; people look at them to see why.
        Episode.objects.bulk_create([_episode(group, record) for record in body.episodes])
    seconds = body.duration_seconds
    again = groups.fail_dispatch(group, boundary=boundary, error=error, max_attempts=attempts, seconds=seconds)
    if run is not None:
        then = "It is tried again." if again else f"Given up after {group.dispatch} tries."
        text = f"Group {group.number} failed at the {boundary} boundary: {error}. {then}"
        record_event(run, "group_failed", text, WARNING, group=str(group.id), boundary=boundary)
    if again and boundary == Boundary.ENGINE:
        # An engine that restarted has lost its adapters.
        base_model = run.policy.base_model.slug if run else _base_model(group)
        if base_model:
            installs.ensure_policies(group, base_model)
    return ""


def _base_model(group: Group) -> str:
    checkpoint = installs.find_checkpoint(group.policy_adapter)
    if checkpoint is not None:
        return checkpoint.run.policy.base_model.slug
    policy = installs.find_policy(group.project_id, group.policy_adapter)
    return policy.base_model.slug if policy else ""


def _apply_result(group: Group, body: GroupReport) -> None:
    Episode.objects.bulk_create([_episode(group, record) for record in body.episodes])
    newest = group.run.version if group.run else max((e.max_version for e in body.episodes), default=0)
    arrival = judge_arrival(
        [_arrived(e) for e in body.episodes], size=group.size, newest_version=newest, **_use_of(group)
    )
    problem = _inconsistency(body.episodes)
    group.state = states.move_group(group.state, GroupState.READY)
    _fill(group, body, arrival)
    group.save()
    if group.purpose == Purpose.EVALUATION:
        groups.close_group(group, Outcome.SCORED)
    elif problem or arrival.outcome is not None:
        groups.close_group(group, Outcome.REJECTED if problem else str(arrival.outcome), problem or arrival.reason)
        if group.run is not None and group.outcome != Outcome.ZERO_VARIANCE:
            text = f"Group {group.number} was dropped: {group.outcome_reason}."
            record_event(group.run, f"group_{group.outcome}", text, WARNING, group=str(group.id))
    group_stored.send(sender=Group, group=group)


def _use_of(group: Group) -> dict[str, Any]:
    """What the run's algorithm can use of a group."""
    if group.run is None:
        return {}
    spec = parse_run_spec(group.run.spec)
    alone_is_enough = spec.algorithm.advantage not in GROUP_ADVANTAGES
    return {"least_scored": 1 if alone_is_enough else 2, "drops_zero_variance": drops_zero_variance(spec)}


def _fill(group: Group, body: GroupReport, arrival: Arrival) -> None:
    group.uri, group.transcript = body.uri, body.transcript
    group.min_version, group.max_version = arrival.min_version, arrival.max_version
    group.num_scored = arrival.num_scored
    group.reward_mean, group.reward_std = arrival.reward_mean, arrival.reward_std
    group.duration_seconds = body.duration_seconds
    now = timezone.now()
    group.started_at = _time(body.started_at, now)
    group.finished_at = _time(body.finished_at, now) or now
    group.outcome_reason, group.boundary = "", ""
    group.not_before = group.deadline_at = None


def _arrived(record: EpisodeRecord) -> ArrivedEpisode:
    return ArrivedEpisode(record.reward, record.min_version, record.max_version, record.num_sampled_tokens)


def _inconsistency(records: list[EpisodeRecord]) -> str:
    if [record.index for record in records] != list(range(len(records))):
        return "the episodes' indices are not 0, 1, 2 …"
    for record in records:
        if (record.verdict in UNSCORED_VERDICTS) != (record.reward is None):
            return f"episode {record.index}: verdict {record.verdict} with reward {record.reward}"
    return ""


def _episode(group: Group, record: EpisodeRecord) -> Episode:
    # A verdict without its reward (NaN travels as null) is no verdict; the group is rejected for it.
    scored = record.verdict not in UNSCORED_VERDICTS and record.reward is not None
    return Episode(
        group=group,
        index=record.index,
        seed=record.seed,
        verdict=Verdict.ERROR if record.reward is None and record.verdict not in UNSCORED_VERDICTS else record.verdict,
        success=record.success and scored,
        reward=record.reward if scored else None,
        reason_code=record.reason_code,
        message=storable(record.message),
        evidence=storable(record.evidence),
        boundary=record.boundary or "",
        stop_reason=record.stop_reason,
        answer=storable(record.answer),
        tamper=record.is_hacking,
        flags=storable(msgspec.to_builtins(record.flags)),
        isolation=storable(record.sandbox.isolation)[:200],
        limits_hit=storable(record.sandbox.limits_hit),
        verifier_hash=record.verification.verifier_hash if record.verification else "",
        **_audit(record.audit),
        **{name: getattr(record, name) for name in _COPIED},
    )


def _audit(said: VerdictRecord | None) -> dict[str, Any]:
    """Columns of the audit verifier's word; one that contradicts itself is none."""
    if said is None:
        return {}
    scored = said.verdict not in UNSCORED_VERDICTS and said.score is not None
    return {
        "audit_verdict": said.verdict if scored or said.verdict in UNSCORED_VERDICTS else Verdict.ERROR,
        "audit_score": said.score if scored else None,
        "audit_reason_code": said.reason_code,
        "audit_message": storable(said.message),
        "audit_hash": said.verifier_hash,
    }


_COPIED = (
    "num_turns", "num_tool_calls", "num_invalid_calls", "num_prompt_tokens", "num_sampled_tokens", "num_total_tokens",
    "min_version", "max_version", "mean_logprob", "engine_seconds", "queue_seconds", "tool_seconds",
    "verifier_seconds", "total_seconds",
)  # fmt: skip


def _time(seconds: float, now: datetime) -> datetime | None:
    """By the worker's clock, which may be ahead of ours: stalls, errors and capacity are counted by ours."""
    return datetime.fromtimestamp(min(seconds, now.timestamp()), UTC) if seconds > 0 else None
