"""No interleaving of completions, failures, version bumps, kills and resumes breaks the bound or the ledger.

Hypothesis chooses what happens next; the reconciler, the services and the database are the real ones.
"""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from apps.runs import selectors, services
from apps.runs.models import Batch, BatchState, Checkpoint, Group, GroupState, RunAttempt, RunState
from apps.runs.services import installs
from apps.runs.states import IllegalTransition
from tests.support.plane import ScriptedPlane
from tests.support.scripted import commit
from tests.support.worlds import make_world, run_spec

LENIENT = {
    "limits__max_attempts": 50, "limits__max_error_share": 1.0, "rollout__max_attempts": 50, "health__stall_seconds": 0,
}  # fmt: skip
PICK = st.integers(0, 10**6)


class Interleavings(RuleBasedStateMachine):
    """One run of three steps on the scripted data plane."""

    @initialize(
        seed=st.integers(0, 99),
        bound=st.integers(0, 2),
        over_sampling=st.sampled_from([0.0, 0.5]),
        stragglers=st.sampled_from(["wait", "abort", "continue"]),
        recovery_share=st.sampled_from([0.0, 0.5]),  # drawn of stragglers that are given up or continued
    )
    def submit(self, seed, bound, over_sampling, stragglers, recovery_share):
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.patch = pytest.MonkeyPatch()
        self.plane = ScriptedPlane(seed)
        self.plane.install(self.patch)
        self.patch.setattr(installs, "ENGINE_DOWN_AFTER", timedelta(days=30))  # time flies here
        self.world = make_world(num_train=6)
        self.bound = bound
        spec = run_spec(
            steps=3, rollout__max_staleness=bound, rollout__over_sampling=over_sampling,
            rollout__stragglers=stragglers,
            rollout__recovery_share=0.0 if stragglers == "wait" else recovery_share, **LENIENT,
        )  # fmt: skip
        self.run_row = self.plane.submit(self.world, spec)
        self.oldest: dict[str, int] = {}  # group -> version of its oldest token, as the worker that won reported it

    def teardown(self):
        if not hasattr(self, "atomic"):
            return
        try:
            self.plane.chaos.__init__()
            if self.state == RunState.PAUSED:
                self.unpause()
            self.plane.play(max_events=self.plane.events + 3000, until=lambda: self.state == RunState.TRAINED)
            assert self.state == RunState.TRAINED, (self.run_row.status_code, self.run_row.status_message)
            self.what_must_hold()
        finally:
            self.patch.undo()
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    @property
    def state(self):
        self.run_row.refresh_from_db()
        return self.run_row.state

    # -- what may happen

    @precondition(lambda self: self.plane.advances)
    @rule()
    def reconcile(self):
        self.plane._advance()

    @rule(seconds=st.sampled_from([1, 15, 61, 320]))
    def time_passes(self, seconds):
        self.plane.pass_time(seconds)

    @precondition(lambda self: self.plane.inbox)
    @rule(pick=PICK, twice=st.booleans())
    def a_report_arrives(self, pick, twice):
        report = self.plane.inbox.pop(pick % len(self.plane.inbox))
        stored = self.plane.ingest(report)
        if report.kind == "group" and stored == "stored" and report.body["uri"]:
            self.oldest.setdefault(report.body["group_id"], min(e["min_version"] for e in report.body["episodes"]))
        if twice:
            assert self.plane.ingest(report) == "duplicate"

    def _take(self, pick):
        job = self.plane.rollouts[pick % len(self.plane.rollouts)]
        self.plane.rollouts.remove(job)
        return job

    @precondition(lambda self: self.plane.rollouts)
    @rule(pick=PICK, rewards=st.sampled_from([[0.0, 1.0, 1.0, 0.0], [1.0] * 4]), twice=st.booleans())
    def a_group_is_done(self, pick, rewards, twice):
        job = self._take(pick)
        for _ in range(1 + twice):
            self.plane.report_group(job, list(rewards))

    @precondition(lambda self: self.plane.rollouts)
    @rule(pick=PICK, boundary=st.sampled_from(["engine", "infrastructure"]))
    def a_group_fails(self, pick, boundary):
        self.plane.report_failure(self._take(pick), boundary, "scripted")

    @precondition(lambda self: self.plane.rollouts)
    @rule(pick=PICK)
    def a_worker_dies(self, pick):
        self._take(pick)

    @precondition(lambda self: self.plane.fleet)
    @rule(refused=st.booleans())
    def the_fleet_answers(self, refused):
        self.plane.chaos.fleet_refusal = float(refused)
        self.plane._install()

    @precondition(lambda self: self.plane.trains)
    @rule()
    def a_trainer_starts(self):
        self.plane._start_trainer()

    @precondition(lambda self: any(self.plane._next_batch(t) or self.plane._can_finish(t) for t in self.plane.trainers))
    @rule(crash=st.sampled_from(["", "", "trainer_crash", "silent_crash"]), zombie=st.booleans())
    def a_trainer_steps(self, crash, zombie):
        self.plane.chaos.trainer_crash = self.plane.chaos.silent_crash = 0.0
        self.plane.chaos.zombie = float(zombie)
        if crash:
            setattr(self.plane.chaos, crash, 1.0)
        self.plane._train()

    @precondition(lambda self: self.plane.checkpoints)
    @rule()
    def the_newest_checkpoint_is_torn(self):
        self.plane.damaged.add(list(self.plane.checkpoints)[-1])

    @precondition(lambda self: self.state in (RunState.STARTING, RunState.RUNNING))
    @rule()
    def pause(self):
        with commit():
            services.pause_run(run=self.run_row, by=self.world.engineer)

    @precondition(lambda self: self.state == RunState.PAUSED)
    @rule()
    def unpause(self):
        with commit():
            services.resume_run(run=self.run_row, by=self.world.engineer)

    # -- what must hold

    @invariant()
    def what_must_hold(self):
        if not hasattr(self, "run_row"):
            return
        run = self.run_row
        run.refresh_from_db()
        assert selectors.ledger(run).adds_up
        assert run.state not in (RunState.FAILED, RunState.HALTED), (run.status_code, run.status_message)
        batches = list(Batch.objects.filter(run=run).exclude(state=BatchState.ABANDONED).order_by("index"))
        assert [batch.index for batch in batches] == list(range(len(batches)))
        by_id = {batch.id: batch for batch in batches}
        for group in Group.objects.filter(run=run, batch__isnull=False):
            oldest = self.oldest.get(str(group.id), group.min_version)
            assert oldest == group.min_version
            assert 0 <= by_id[group.batch_id].index - oldest == group.age <= self.bound
        for batch in batches:
            members = Group.objects.filter(batch=batch)
            assert members.count() == 2
            if batch.state == BatchState.TRAINED:
                assert set(members.values_list("outcome", flat=True)) == {"trained"}
        for checkpoint in Checkpoint.objects.filter(run=run):
            assert checkpoint.batch_ids == [str(batch.id) for batch in batches[: checkpoint.version]]
        assert RunAttempt.objects.filter(run=run).exclude(state="ended").count() <= 1
        for key, held in self.plane.checkpoints.items():
            assert len(held) == len(set(held)), f"{key} holds a batch twice"


def explore(examples, steps):
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), print_blob=False, phases=[Phase.generate],
        ),
    )  # fmt: skip


def test_no_interleaving_breaks_the_bound_or_the_ledger(db, caplog):
    caplog.set_level("ERROR")
    explore(examples=12, steps=40)


@pytest.mark.parametrize(
    ("broken", "value", "found"),
    [
        ("apps.runs.scheduling.batching.is_stale", lambda *_: False, AssertionError),
        ("apps.runs.services.groups.UNFINISHED_STATES", (*GroupState,), (IntegrityError, IllegalTransition)),
    ],
)
def test_the_search_finds_a_broken_rule(db, caplog, monkeypatch, broken, value, found):
    caplog.set_level("CRITICAL")
    monkeypatch.setattr(broken, value)
    with pytest.raises(found):
        explore(examples=12, steps=40)
