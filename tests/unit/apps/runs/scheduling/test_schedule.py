"""The schedule as a whole, played in random order: bounds hold, it never stands still, the ledger adds up."""

import random
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.runs.scheduling.admission import Demand, room
from apps.runs.scheduling.batching import ReadyGroup, plan_batches
from apps.runs.scheduling.ledger import build_ledger


@dataclass
class Schedule:
    """An asynchronous run in memory: admission, rollouts, a trainer and a fleet, each moving when it is chosen."""

    batch_size: int
    num_steps: int
    max_staleness: int
    random: random.Random
    drop_share: float
    confirmed: int = 0
    version: int = 0
    admitted: int = 0
    running: list[ReadyGroup] = field(default_factory=list)
    ready: list[ReadyGroup] = field(default_factory=list)
    batches: list[list[tuple[UUID, int, int]]] = field(default_factory=list)  # (id, age, version)
    closed: dict[str, int] = field(default_factory=lambda: {"stale": 0, "zero_variance": 0, "trained": 0})

    def reconcile(self) -> None:
        plan = plan_batches(
            self.ready, next_index=len(self.batches), num_steps=self.num_steps, batch_size=self.batch_size,
            max_staleness=self.max_staleness,
        )  # fmt: skip
        byid = {group.id: group for group in self.ready}
        for batch in plan.batches:
            assert batch.index == len(self.batches)
            self.batches.append([(m.id, m.age, byid[m.id].min_version) for m in batch.members])
        used = {member.id for batch in plan.batches for member in batch.members} | {g.id for g in plan.stale}
        self.ready = [group for group in self.ready if group.id not in used]
        self.closed["stale"] += len(plan.stale)
        demand = Demand(
            batch_size=self.batch_size, num_steps=self.num_steps, max_staleness=self.max_staleness,
            confirmed_version=self.confirmed, num_batches=len(self.batches), num_ready=len(self.ready),
            num_unfinished=len(self.running),
        )  # fmt: skip
        for _ in range(room(demand)):
            self.admitted += 1
            self.running.append(ReadyGroup(UUID(int=self.admitted), self.admitted, self.confirmed))

    def moves(self) -> list[str]:
        return [
            name
            for name, possible in (
                ("rollout", bool(self.running)),
                ("train", self.version < len(self.batches)),
                ("install", self.confirmed < self.version),
            )
            if possible
        ]

    def play(self, move: str) -> None:
        if move == "rollout":
            group = self.running.pop(self.random.randrange(len(self.running)))
            if self.random.random() < self.drop_share:
                self.closed["zero_variance"] += 1
            else:
                self.ready.append(group)
        elif move == "train":
            self.closed["trained"] += len(self.batches[self.version])
            self.version += 1
        else:
            self.confirmed = self.version

    def check(self) -> None:
        waiting = sum(len(batch) for batch in self.batches[self.version :])
        counts = {("running", ""): len(self.running), ("ready", ""): len(self.ready), ("batched", ""): waiting}
        counts |= {("closed", outcome): count for outcome, count in self.closed.items()}
        assert build_ledger(self.admitted, counts).adds_up
        for index, batch in enumerate(self.batches):
            assert len(batch) == self.batch_size
            assert all(age == index - version <= self.max_staleness for _, age, version in batch)
        members = [member for batch in self.batches for member, *_ in batch]
        assert len(members) == len(set(members))


@settings(max_examples=150, deadline=None)
@given(
    batch_size=st.integers(1, 4),
    num_steps=st.integers(1, 6),
    max_staleness=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    drop_share=st.sampled_from([0.0, 0.3, 0.7]),
)
def test_any_interleaving_trains_every_step_within_the_bound(batch_size, num_steps, max_staleness, seed, drop_share):
    chance = random.Random(seed)
    schedule = Schedule(batch_size, num_steps, max_staleness, chance, drop_share)
    for _ in range(5000):
        schedule.reconcile()
        schedule.check()
        if schedule.version == num_steps:
            break
        moves = schedule.moves()
        assert moves, "nothing can move, and the run is not done: a deadlock"
        schedule.play(chance.choice(moves))
    assert schedule.version == num_steps
    assert schedule.closed["trained"] == num_steps * batch_size
    # What was generated in vain is what was dropped: nothing is left over at the end.
    assert not schedule.running
    assert not schedule.ready


@settings(max_examples=60, deadline=None)
@given(batch_size=st.integers(1, 4), num_steps=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_bound_zero_is_exactly_synchronous(batch_size, num_steps, seed):
    chance = random.Random(seed)
    schedule = Schedule(batch_size, num_steps, 0, chance, 0.3)
    while schedule.version < num_steps:
        schedule.reconcile()
        schedule.check()
        generating = {group.min_version for group in schedule.running + schedule.ready}
        # Nothing is generated while a batch is trained or installed, and only by the newest version.
        assert generating <= {len(schedule.batches)} & {schedule.version} & {schedule.confirmed}
        schedule.play(chance.choice(schedule.moves()))
    assert schedule.closed["stale"] == 0
    assert {age for batch in schedule.batches for _, age, _ in batch} == {0}


@pytest.mark.parametrize("bound", [1, 2])
def test_a_higher_bound_generates_ahead(bound):
    schedule = Schedule(2, 10, bound, random.Random(0), 0.0)
    schedule.reconcile()
    assert len(schedule.running) == 2 * (bound + 1)
