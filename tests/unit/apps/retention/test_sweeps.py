"""A sweep reports before it deletes, deletes what is past its time, and never what is pinned."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from apps.accounts.models import User
from apps.audit.models import AuditEvent
from apps.audit.services import record
from apps.evaluations.models import Evaluation, EvaluationArm, EvaluationItem
from apps.metrics import sealing
from apps.metrics.models import MetricBatch
from apps.metrics.reading import TooManyPoints, read_series
from apps.metrics.services import store_points
from apps.policies.models import Channel, Policy
from apps.promotions.models import Gate
from apps.retention.models import Sweep
from apps.retention.services import apply_sweep, plan_sweep, sweep_daily
from apps.reviews.models import ReviewItem
from apps.runs.models import Checkpoint, Episode, Group, Run
from ratchet.problems import Problem
from ratchet.store import get_store
from tests.support.worlds import World, make_world, run_spec

LONG_AGO = timezone.now() - timedelta(days=400)


@pytest.fixture
def world(db) -> World:
    return make_world()


@pytest.fixture
def run(world) -> Run:
    return Run.objects.create(
        project=world.project, number=1, spec=run_spec(), spec_hash="x" * 64, suite=world.suite, policy=world.policy,
        state="succeeded", finished_at=LONG_AGO,
    )  # fmt: skip


def checkpoint(run: Run, version: int) -> Checkpoint:
    uri = f"runs/{run.pk}/a1/v{version:06d}"
    get_store().write(f"{uri}/adapter/adapter_model.safetensors", b"w" * 100)
    return Checkpoint.objects.create(
        run=run, attempt=1, version=version, uri=uri, adapter=f"{uri}/adapter", sha256=f"{version}" * 64
    )


def group(run: Run | None, world: World, content: bytes, purpose: str = "train") -> Group:
    made = Group.objects.create(
        project=world.project, run=run, number=Group.objects.count(), task=world.suite.tasks.first(), purpose=purpose,
        size=1, state="closed", outcome="scored", finished_at=LONG_AGO, uri=get_store().put(content),
        transcript=get_store().put(b"transcript of " + content),
    )  # fmt: skip
    Episode.objects.create(
        group=made, index=0, seed=1, verdict="pass", reward=1.0, reason_code="OK", stop_reason="answered"
    )
    return made


def gate_on(world: World, run: Run, arms: list[Checkpoint], groups: list[Group]) -> Gate:
    from apps.evaluations.gate_policies import resolve_gate_policy

    evaluation = Evaluation.objects.create(
        project=world.project, suite=world.suite, split="heldout", purpose="gate", plan_hash="p" * 64, run=run
    )
    for position, subject in enumerate(arms):
        arm = EvaluationArm.objects.create(
            evaluation=evaluation, position=position, label=str(position), checkpoint=subject
        )
        for place, judged in enumerate(groups):
            EvaluationItem.objects.create(
                evaluation=evaluation, arm=arm, task=judged.task, group=judged, position=10 * position + place
            )
    channel = Channel.objects.create(project=world.project, name="production", policy=world.policy)
    return Gate.objects.create(
        project=world.project, number=1, channel=channel, incumbent=world.policy, candidate=world.policy, run=run,
        evaluation=evaluation, gate_policy=resolve_gate_policy(world.project, "default"),
    )  # fmt: skip


def exists(key: str) -> bool:
    return get_store().exists(key)


def test_a_sweep_reports_then_deletes_and_leaves_what_is_pinned(world, run):
    plain, accepted, judged = (checkpoint(run, version) for version in (1, 2, 3))
    Policy.objects.create(
        project=world.project, slug="made", title="Made", kind="reinforced", base_model=world.base,
        adapter=accepted.adapter, adapter_sha256=accepted.sha256, run_id=run.pk, run_version=2,
    )  # fmt: skip
    dropped, shared, reviewed = (group(run, world, name) for name in (b"dropped", b"shared", b"reviewed"))
    evidence = group(None, world, b"shared", purpose="evaluation")
    gate_on(world, run, [judged], [evidence])
    ReviewItem.objects.create(
        project=world.project, episode=reviewed.episodes.get(), stratum="s", inclusion_probability=1, why="random",
        position=0,
    )  # fmt: skip
    event = record(tag="system:run:note", by=None, project=world.project, subject=run)
    num_events = AuditEvent.objects.count()
    sweep = plan_sweep()
    assert {name: (f["expired"], f["pinned"]) for name, f in sweep.findings.items() if f["expired"] or f["pinned"]} == {
        "checkpoints": (1, 2), "group_files": (2, 2), "audit": (0, num_events),
    }  # fmt: skip
    assert sweep.findings["checkpoints"]["bytes"] == 100
    assert all(exists(c.uri) for c in (plain, accepted, judged))  # a report deletes nothing
    assert exists(dropped.uri)

    apply_sweep(sweep=sweep, by=None)
    assert [exists(c.uri) for c in (plain, accepted, judged)] == [False, True, True]
    assert (exists(dropped.uri), exists(dropped.transcript)) == (False, False)
    assert exists(shared.uri)  # the same bytes are evidence of a gate
    assert exists(reviewed.transcript)
    plain.refresh_from_db()
    assert (plain.uri, plain.sha256) == ("", "1" * 64)
    assert sweep.deleted["group_files"]["rows"] == 2
    assert AuditEvent.objects.filter(pk=event.pk).exists()
    assert AuditEvent.objects.latest("id").tag == "system:retention:delete"
    again = plan_sweep()
    assert sum(f["expired"] for f in again.findings.values()) == 0
    with pytest.raises(Problem, match="applied already"):
        apply_sweep(sweep=sweep, by=None)


def test_what_is_young_or_still_running_is_kept(world, run):
    kept = checkpoint(run, 1)
    Run.objects.update(finished_at=timezone.now() - timedelta(days=29))
    assert plan_sweep().findings["checkpoints"]["expired"] == 0
    Run.objects.update(state="running", finished_at=None)
    assert plan_sweep().findings["checkpoints"]["expired"] == 0
    assert exists(kept.uri)


def test_what_is_pinned_after_the_report_is_kept(world, run):
    late = checkpoint(run, 1)
    sweep = plan_sweep()
    gate_on(world, run, [late], [])
    apply_sweep(sweep=sweep, by=None)
    assert exists(late.uri)


def test_old_points_leave_their_extremes(world, run):
    for step in range(3):
        store_points(run, step, {"train/loss": [1.0, 9.0, 2.0][step]}, measured=False, at=LONG_AGO)
    sealing.seal(run.pk)
    sweep = plan_sweep()
    assert sweep.findings["metric_points"]["expired"] == 1
    assert sweep.findings["metric_replay"]["expired"] == 3
    apply_sweep(sweep=sweep, by=None)
    found = read_series(run, ["train/loss"]).series[0]
    assert dict(zip(found.steps, found.values, strict=True)) == {0: 1.0, 1: 9.0}
    assert (found.num_points, found.whole) == (3, False)
    with pytest.raises(TooManyPoints, match="retention"):
        read_series(run, ["train/loss"], every_point=True)
    assert MetricBatch.objects.filter(data__isnull=False).count() == 0
    assert store_points(run, 7, {"train/loss": 3.0}, measured=False, at=LONG_AGO) == 1  # and it can still grow
    sealing.seal(run.pk)
    assert read_series(run, ["train/loss"]).series[0].num_points == 4


def test_the_platform_gives_a_day_of_notice(world, run):
    kept = checkpoint(run, 1)
    first = sweep_daily(delete=True)
    assert first.applied_at is None
    sweep_daily(delete=True)
    assert exists(kept.uri)
    Sweep.objects.update(planned_at=timezone.now() - timedelta(hours=25))
    sweep_daily(delete=False)
    assert exists(kept.uri)
    Sweep.objects.update(planned_at=timezone.now() - timedelta(hours=25))
    sweep_daily(delete=True)
    assert not exists(kept.uri)


def test_the_command_reports_and_deletes_by_number(world, run):
    kept = checkpoint(run, 1)
    out = StringIO()
    call_command("sweep_retention", stdout=out)
    assert "checkpoints (30 days): 1 expired, 100 bytes; 0 pinned" in out.getvalue()
    assert exists(kept.uri)
    number = Sweep.objects.latest("id").pk
    call_command("sweep_retention", "--delete", str(number), stdout=out)
    assert "checkpoints: 1 deleted, 100 bytes" in out.getvalue()
    assert not exists(kept.uri)
    with pytest.raises(CommandError, match="no sweep"):
        call_command("sweep_retention", "--delete", "999")


def test_superusers_alone_read_it(world, client_of):
    plan_sweep()
    root = User.objects.create_superuser("root", password="a long password")
    answer = client_of(root).get("/api/v1/retention/").json()
    assert {rule["name"] for rule in answer["rules"]} >= {"checkpoints", "audit"}
    assert answer["sweeps"][0]["findings"]["audit"]["expired"] == 0
    for user in world.users.values():
        assert client_of(user).get("/api/v1/retention/").status_code == 403
    with pytest.raises(Problem, match="superuser"):
        apply_sweep(sweep=Sweep.objects.get(), by=world.engineer)
