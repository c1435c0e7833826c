"""Runs that train every weight: turns on their engines, versions, installs, ends, bad input; scripted workers."""

import itertools
from typing import Any

import pytest

from apps.policies.models import Policy, PolicyKind
from apps.runs.models import FleetInstall, FleetLease, Group, InstallState, Run, RunState
from apps.runs.scheduling.halting import Halt
from apps.runs.services import controls, finish_run, halt_run, leases, submit_run
from gpu_workers.contracts.messages import Transfer
from ratchet.problems import Problem
from tests.support.plane import ScriptedPlane
from tests.support.scripted import Chaos, commit
from tests.support.worlds import World, make_world, run_spec

pytestmark = pytest.mark.django_db
ENGINES = ["http://full-1", "http://full-2"]


@pytest.fixture(autouse=True)
def engines(settings) -> None:
    settings.ROLLOUT_FULL_ENGINE_URLS = ENGINES


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def make_plane(monkeypatch):
    def make(seed: int = 0, **chaos: float) -> ScriptedPlane:
        plane = ScriptedPlane(seed, Chaos(**chaos))
        plane.install(monkeypatch)
        return plane

    return make


def full(**changes: Any) -> dict[str, Any]:
    return run_spec(trainer__update="full", **changes)


def fresh(run: Run) -> Run:
    return Run.objects.get(pk=run.pk)


def lease_of(run: Run) -> FleetLease | None:
    return leases.open_leases().filter(run=run).first()


def play_until(plane: ScriptedPlane, run: Run, state: RunState) -> Run:
    plane.play(until=lambda: fresh(run).state == state)
    found = fresh(run)
    assert found.state == state, (found.state, found.status_code, found.status_message)
    return found


def finish(plane: ScriptedPlane, run: Run) -> None:
    play_until(plane, run, RunState.TRAINED)
    with commit():
        finish_run(run=run, result=None, message="done")


def test_a_full_run_brings_its_engines_to_version_0_and_replaces_version_by_version(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, full(trainer__transfer="delta", steps=4))
    finish(plane, run)
    assert not plane.wrong_weights and not plane.wrong_adapters
    first = plane.installs[0]
    assert (first.install[0].name, first.install[0].uri, first.install[0].sha256) == (f"run-{run.pk}.a0@v0", "", "")
    assert {job.transfer for job in plane.installs} == {Transfer.DELTA}
    assert [job.engines for job in plane.installs] == [ENGINES] * len(plane.installs)
    names = [job.install[0].name for job in plane.installs]
    assert names == sorted(names, key=lambda name: int(name.rpartition("@v")[2])) and len(names) >= 2
    assert all(not job.retire for job in plane.installs)
    assert {tuple(job.engines) for job in plane.sent} == {tuple(ENGINES)}
    assert all(job.policy.weights.endswith(f"@v{job.policy.version}") and not job.policy.adapter for job in plane.sent)
    assert {job.policy.version for job in plane.sent} > {0}
    trained = Group.objects.filter(run=run, outcome="trained")
    assert trained.count() == 8 and all(group.age <= 1 for group in trained)
    on_engines = run.checkpoints.filter(install_state=InstallState.CONFIRMED)
    assert on_engines.count() == 1  # the next takes the place of the one before
    row = FleetInstall.objects.filter(run=run, version__gt=0, state=InstallState.CONFIRMED).first()
    assert row.transfer == "delta" and row.density == 0.01
    text = run.events.filter(code="installed").order_by("id").last().message
    assert "by delta" in text and "1 % of the weights changed" in text and "paused 0.02 s" in text
    assert lease_of(run) is None


def test_full_runs_take_turns_in_their_order_and_a_lora_run_waits_for_none_of_them(world, make_plane):
    plane = make_plane()
    first, second, third = (plane.submit(world, full(steps=2)) for _ in range(3))
    adapter = plane.submit(world, run_spec(steps=2))
    play_until(plane, adapter, RunState.TRAINED)
    plane.play(until=lambda: fresh(third).status_code == "waiting_for_fleet")
    assert fresh(second).status_message == f"Waits for the engines of full runs: run {first.number} holds it."
    assert "and 1 more wait before it" in fresh(third).status_message
    assert fresh(second).state == RunState.QUEUED and not fresh(second).attempts.exists()
    for run, waiting in ((first, second), (second, third)):
        finish(plane, run)
        plane.play(until=lambda waiting=waiting: fresh(waiting).started_at is not None)
    finish(plane, third)
    granted = list(FleetLease.objects.order_by("granted_at").values_list("run_id", flat=True))
    assert granted == [first.pk, second.pk, third.pk]
    held = list(FleetLease.objects.order_by("granted_at").values_list("granted_at", "released_at"))
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(held))
    assert not plane.wrong_weights


def test_another_projects_holder_is_not_named(world, make_plane):
    plane = make_plane()
    plane.submit(world, full())
    other = plane.submit(make_world(slug="other"), full())
    plane.play(until=lambda: fresh(other).status_code == "waiting_for_fleet")
    assert fresh(other).status_message == "Waits for the engines of full runs: another project holds it."


@pytest.mark.parametrize("ending", ["cancelled", "failed", "halted", "cancelled while it waits"])
def test_however_a_run_ends_its_turn_ends_with_it(world, make_plane, ending):
    plane = make_plane()
    run = plane.submit(world, full(limits__max_attempts=1))
    after = plane.submit(world, full(steps=2))
    plane.play(until=lambda: fresh(after).status_code == "waiting_for_fleet" and fresh(run).version >= 1)
    if ending == "cancelled while it waits":
        with commit():
            controls.cancel_run(run=after, by=world.engineer)
        assert lease_of(after) is None and lease_of(run).granted_at
        return
    with commit():
        if ending == "cancelled":
            controls.cancel_run(run=run, by=world.engineer)
        elif ending == "halted":
            halt_run(controls.lock_run(run), Halt("entropy_low", "The entropy was low."))
        else:
            Run.objects.filter(pk=run.pk).update(spec_hash="0" * 64)
            plane.request_advance(run.pk)
    plane.play(until=lambda: fresh(after).started_at is not None)
    assert fresh(run).state == ending and lease_of(run) is None
    assert lease_of(after).granted_at is not None
    finish(plane, after)
    assert not plane.wrong_weights


def test_a_turn_that_nobody_ended_is_swept_up(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, full())
    plane.play(until=lambda: fresh(run).version >= 1)
    Run.objects.filter(pk=run.pk).update(state=RunState.FAILED, finished_at=plane.now)
    plane.pass_time(1)
    assert lease_of(run) is None


def test_a_run_that_is_paused_before_its_turn_leaves_the_line(world, make_plane):
    plane = make_plane()
    first, second, third = (plane.submit(world, full(steps=2)) for _ in range(3))
    plane.play(until=lambda: fresh(third).status_code == "waiting_for_fleet")
    with commit():
        controls.pause_run(run=second, by=world.engineer)
        controls.pause_run(run=first, by=world.engineer)
    assert lease_of(second) is None and lease_of(first).granted_at
    plane.pass_time(15)
    plane.play(until=lambda: "paused" in fresh(third).status_message)
    assert "(paused) holds it" in fresh(third).status_message
    with commit():
        controls.resume_run(run=second, by=world.engineer)
        controls.resume_run(run=first, by=world.engineer)
    for run in (first, third, second):
        finish(plane, run)


def test_the_next_holder_waits_for_an_install_of_the_last_one_that_may_be_under_way(world, make_plane):
    plane = make_plane()
    run, after = plane.submit(world, full()), plane.submit(world, full(steps=2))
    plane.play(until=lambda: any(job.install[0].version >= 1 for job in plane.fleet))
    with commit():
        controls.cancel_run(run=run, by=world.engineer)
        assert leases.ask_for_run(controls.lock_run(after)).granted_at is None
    while plane.fleet:
        plane._install()
    plane.play(until=lambda: fresh(after).started_at is not None)
    finish(plane, after)
    assert not plane.wrong_weights


def test_engines_that_restarted_are_brought_back_to_the_confirmed_version(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, full(steps=6, rollout__max_attempts=20))
    plane.play(until=lambda: fresh(run).confirmed_version >= 1 and plane.rollouts)
    version = fresh(run).confirmed_version
    plane.weights = "default"
    plane.fleet.clear()
    FleetInstall.objects.filter(run=run, state=InstallState.REQUESTED).delete()
    plane.report_failure(plane.rollouts.popleft(), "engine", "the engine's weights are 'default'")
    num = len(plane.installs)
    plane.play(until=lambda: len(plane.installs) > num)
    item = plane.installs[num].install[0]
    assert item.name.startswith(f"run-{run.pk}.a1@v") and item.version >= version
    finish(plane, run)


@pytest.mark.parametrize("seed", range(4))
def test_it_comes_to_its_end_whatever_dies(world, make_plane, seed):
    plane = make_plane(
        seed, trainer_crash=0.1, start_crash=0.1, silent_crash=0.05, engine_error=0.03, fleet_refusal=0.2,
        duplicate=0.2, reorder=0.2, lost_rollout=0.03,
    )  # fmt: skip
    run = plane.submit(world, full(limits__max_attempts=30, rollout__max_attempts=30, limits__max_error_share=1.0))
    finish(plane, run)
    assert run.checkpoints.count() == 4 and fresh(run).version == 4
    assert all(checkpoint.adapter.endswith("/model") for checkpoint in run.checkpoints.all())


def test_a_checkpoint_that_was_never_reported_is_taken_over_by_its_own_manifest(world, make_plane):
    plane = make_plane(seed=2, silent_crash=0.0)
    run = plane.submit(world, full())
    plane.play(until=lambda: fresh(run).version >= 1)
    plane.chaos.silent_crash = 1.0
    plane.play(until=lambda: plane.trainers[-1].dead)
    plane.chaos.silent_crash = 0.0
    plane.pass_time(60)
    finish(plane, run)
    assert run.events.filter(code="checkpoint_adopted").exists()
    assert all(checkpoint.adapter.endswith("/model") for checkpoint in run.checkpoints.all())


def policy_of(world: World, slug: str, *, whole: bool) -> Policy:
    return Policy.objects.create(
        project=world.project, slug=slug, title=slug, kind=PolicyKind.REINFORCED, base_model=world.base,
        adapter=f"policies/{slug}", adapter_sha256="d" * 64, whole_weights=whole,
    )  # fmt: skip


def test_a_run_from_whole_weights_starts_its_engines_with_them(world, make_plane):
    plane = make_plane()
    policy_of(world, "whole", whole=True)
    run = plane.submit(world, full(policy="whole", steps=2))
    finish(plane, run)
    item = plane.installs[0].install[0]
    assert (item.name, item.uri, item.sha256) == (f"run-{run.pk}.a0@v0", "policies/whole", "d" * 64)
    job = plane.trainers[0].job
    assert (job.parent_checkpoint, job.parent_sha256) == ("policies/whole", "d" * 64)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"policy": "whole", "trainer__update": "lora"}, "policy", "set trainer.update to full"),
        ({"policy": "adapter"}, "policy", "do not add to the base model"),
        ({"evaluation__dev_every": 2}, "evaluation.dev_every", "the last checkpoint is evaluated"),
        ({"trainer__transfer": "adapter"}, "trainer.transfer", "use auto or one of full"),
        ({"trainer__transfer": "pigeon"}, "trainer.transfer", "pigeon"),
    ],
)
def test_what_cannot_run_is_refused_with_its_path(world, make_plane, changes, path, words):
    make_plane()
    policy_of(world, "whole", whole=True)
    policy_of(world, "adapter", whole=False)
    with pytest.raises(Problem) as refused:
        spec = run_spec(**{"trainer__update": "full"} | changes)
        submit_run(project=world.project, spec=spec, by=world.engineer)
    (error,) = refused.value.errors
    assert error["path"] == path and words in error["message"]


def test_without_their_engines_full_runs_are_refused_and_queued_ones_say_what_is_missing(world, make_plane, settings):
    plane = make_plane()
    run = plane.submit(world, full())
    settings.ROLLOUT_FULL_ENGINE_URLS = []
    plane.play(max_events=50)
    assert fresh(run).status_code == "waiting_for_fleet" and "ROLLOUT_FULL_ENGINE_URLS" in fresh(run).status_message
    with pytest.raises(Problem, match="RATCHET_FULL_ENGINE=1"):
        submit_run(project=world.project, spec=full(), by=world.engineer)
    settings.ROLLOUT_FULL_ENGINE_URLS = ENGINES
    finish(plane, run)


def test_a_supervised_full_run_needs_no_turn_while_it_trains(world, make_plane):
    plane = make_plane()
    holder = plane.submit(world, full())
    plane.play(until=lambda: fresh(holder).version >= 1)
    run = submit_run(project=world.project, spec=full(algorithm__kind="sft"), by=world.engineer)
    Run.objects.filter(pk=run.pk).update(dataset="objects/aa/dataset")
    plane.request_advance(run.pk)
    play_until(plane, run, RunState.TRAINED)
    assert not FleetLease.objects.filter(run=run).exists()
