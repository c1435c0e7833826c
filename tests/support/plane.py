"""A scripted data plane: rollout worker, trainer and fleet that speak only messages, with failures on demand."""

import json
import random
from collections import defaultdict, deque
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from apps.runs import jobs, messaging
from apps.runs.models import Run
from apps.runs.services import submit_run
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import (
    FleetJob,
    GroupReport,
    GroupSignal,
    Heartbeat,
    PolicyInstalled,
    Report,
    RolloutJob,
    TrainJob,
    Transfer,
)
from gpu_workers.engines.versions import is_served
from tests.support.scripted import Chaos, ScriptedTrainer, commit, episode, over_the_wire
from tests.support.scripted_trainer import TrainerPart
from tests.support.worlds import World


class ScriptedPlane(TrainerPart):
    """Holds all messages; `run_until` plays events in a seeded random order until nothing is left to do."""

    def __init__(self, seed: int = 0, chaos: Chaos | None = None) -> None:
        self.random = random.Random(seed)
        self.chaos = chaos or Chaos()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.rollouts: deque[RolloutJob] = deque()
        self.slow: list[tuple[int, RolloutJob]] = []
        self.fleet: deque[FleetJob] = deque()
        self.trains: deque[TrainJob] = deque()
        self.datasets: deque[str] = deque()
        self.queues: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self.advances: deque[str] = deque()
        self.inbox: list[Report] = []
        self.trainers: list[ScriptedTrainer] = []
        self.checkpoints: dict[str, list[str]] = {}  # folder key -> batch ids
        self.answers: list[str] = []  # what ingest said of each delivery
        self.adapters: set[str] = set()  # on the engines
        self.weights = "default"  # of the engines whose weights are replaced
        self.installs: list[FleetJob] = []  # whole weights that were installed, in order
        self.wrong_weights: list[str] = []
        self.sent: list[RolloutJob] = []
        self.events = 0
        self.wrong_adapters: list[str] = []
        self.signals: list[GroupSignal] = []
        self.damaged: set[str] = set()
        self.metrics: dict[str, float] = {}

    # -- the seams that are replaced

    def send_rollout(self, job: RolloutJob) -> None:
        job = over_the_wire(job, RolloutJob)
        if job.policy.adapter and job.policy.adapter not in self.adapters:
            self.wrong_adapters.append(job.policy.adapter)
        if job.policy.weights and not is_served(self.weights, job.policy.weights):
            self.wrong_weights.append(f"{job.policy.weights} of {self.weights}")
        self.rollouts.append(job)
        self.sent.append(job)

    def send_train(self, job: TrainJob) -> None:
        self.trains.append(over_the_wire(job, TrainJob))

    def count_waiting_trainings(self) -> int:
        return len(self.trains)

    def send_fleet(self, job: FleetJob) -> None:
        self.fleet.append(over_the_wire(job, FleetJob))

    def signal_groups(self, signal: GroupSignal) -> None:
        """As the workers do it: a group that is given up is dropped, the others go on with another version."""
        signal = over_the_wire(signal, GroupSignal)
        self.signals.append(signal)
        if signal.policy is None:
            self.rollouts = deque(job for job in self.rollouts if job.group_id not in signal.group_ids)
            self.slow = [item for item in self.slow if item[1].group_id not in signal.group_ids]

    def put(self, queue: str, payload: dict[str, Any]) -> None:
        self.queues[queue].append(json.loads(json.dumps(payload)))

    def request_advance(self, run_id: Any, delay_seconds: float = 0.0) -> None:
        if str(run_id) not in self.advances:
            self.advances.append(str(run_id))

    def request_dataset(self, run_id: Any) -> None:
        self.datasets.append(str(run_id))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (
            "send_rollout",
            "send_train",
            "count_waiting_trainings",
            "send_fleet",
            "put",
            "request_advance",
            "request_dataset",
            "signal_groups",
        ):
            monkeypatch.setattr(messaging, name, getattr(self, name))
        monkeypatch.setattr(timezone, "now", lambda: self.now)

    # -- playing

    def submit(self, world: World, spec: dict[str, Any]) -> Run:
        with commit():
            return submit_run(project=world.project, spec=spec, by=world.engineer)

    def play(self, max_events: int = 5000, until: Any = None) -> None:
        """Play events until nothing is left to do (or `until()`), letting time pass when all is quiet."""
        quiet = 0
        while self.events < max_events:
            if until is not None and until():
                return
            if self.step():
                quiet = 0
                continue
            quiet += 1
            if quiet > 60:
                return
            self.pass_time(15)

    def step(self) -> bool:
        """Play one event. False: there was none."""
        self.events += 1
        self.now += timedelta(milliseconds=100)
        self._release_slow()
        choices = [act for act, ready in self._possible() if ready]
        if not choices:
            return False
        self.random.choice(choices)()
        return True

    def _possible(self) -> list[tuple[Any, bool]]:
        return [
            (self._advance, bool(self.advances)),
            (self._deliver, bool(self.inbox)),
            (self._roll, bool(self.rollouts)),
            (self._install, bool(self.fleet)),
            (self._start_trainer, bool(self.trains)),
            (self._train, any(self._next_batch(t) is not None or self._can_finish(t) for t in self.trainers)),
            (self._dataset, bool(self.datasets)),
        ]

    def pass_time(self, seconds: float) -> None:
        """Move the clock; live trainers send heartbeats; the periodic jobs run."""
        self.now += timedelta(seconds=seconds)
        self.heartbeat()
        with commit():
            jobs.reap_leases()
        with commit():
            jobs.tick()

    def heartbeat(self) -> None:
        for trainer in self.trainers:
            if trainer.started and not trainer.dead and not trainer.finished:
                job = trainer.job
                beat = Heartbeat(
                    run_id=job.run_id, attempt=job.attempt, token=job.token, worker="scripted", state="waiting",
                    step=trainer.version, cpu_seconds=trainer.version * 2.0, memory_bytes=10**9,
                )  # fmt: skip
                with commit():
                    jobs.heartbeat(jsonable(beat))

    # -- control plane's own work

    def _advance(self) -> None:
        run_id = self.advances.popleft()
        with commit():
            jobs.advance(run_id)

    def _dataset(self) -> None:
        with commit():
            jobs.build_dataset(self.datasets.popleft())

    def _deliver(self) -> None:
        index = self.random.randrange(len(self.inbox)) if self._happens(self.chaos.reorder) else 0
        report = self.inbox.pop(index)
        if self._happens(self.chaos.duplicate):
            self.inbox.append(report)
        self.answers.append(self.ingest(report))

    def ingest(self, report: Report) -> str:
        with commit():
            return str(jobs.ingest_report(jsonable(report)))

    # -- rollout worker

    def _release_slow(self) -> None:
        for item in [item for item in self.slow if item[0] <= self.events]:
            self.slow.remove(item)
            self.rollouts.append(item[1])

    def _roll(self) -> None:
        job = self.rollouts.popleft()
        if self._happens(self.chaos.slow_rollout):
            self.slow.append((self.events + self.random.randrange(20, 200), job))
            return
        if self._happens(self.chaos.lost_rollout):
            return
        if self._happens(self.chaos.infrastructure_error):
            self.report_failure(job, "infrastructure", "no sandbox could start")
        elif self._happens(self.chaos.engine_error):
            self.adapters.clear()
            self.weights = "default"
            self.report_failure(job, "engine", "connection refused")
        else:
            self.report_group(job)
            if self._happens(self.chaos.resent):
                self.report_group(job)

    def report_group(self, job: RolloutJob, rewards: list[float] | None = None) -> None:
        if rewards is None:
            rewards = [float(self.random.random() < 0.5) for _ in range(job.group_size)]
            rewards[:2] = [0.0, 1.0][: len(rewards)]
            if self._happens(self.chaos.zero_variance):
                rewards = [1.0] * job.group_size
        episodes = [episode(index, reward, version=job.policy.version) for index, reward in enumerate(rewards)]
        now = self.now.timestamp()
        body = GroupReport(
            group_id=job.group_id, attempt=job.attempt, uri=f"objects/aa/{job.group_id}",
            transcript=f"objects/bb/{job.group_id}", episodes=episodes,
            min_version=job.policy.version, max_version=job.policy.version,
            duration_seconds=3.0, started_at=now - 3, finished_at=now,
        )  # fmt: skip
        self.send("group", body, run_id=job.run_id, attempt=job.run_attempt)

    def report_failure(self, job: RolloutJob, boundary: str, error: str) -> None:
        body = GroupReport(group_id=job.group_id, attempt=job.attempt, error=error, boundary=boundary)
        self.send("group", body, run_id=job.run_id, attempt=job.run_attempt)

    def send(
        self,
        kind: str,
        body: msgspec.Struct,
        *,
        run_id: str = "",
        attempt: int = 0,
        token: int = 0,
        report_id: str = "",
    ) -> Report:
        report = Report(
            report_id=report_id or f"r{self.random.getrandbits(96):024x}",
            kind=kind, body=jsonable(body), worker="scripted",
            sent_at=self.now.timestamp(), run_id=run_id, run_attempt=attempt, token=token,
        )  # fmt: skip
        self.inbox.append(report)
        return report

    # -- fleet worker

    def _install(self) -> None:
        job = self.fleet.popleft()
        ok = not self._happens(self.chaos.fleet_refusal)
        if ok and job.transfer is not Transfer.ADAPTER:
            self.installs.append(job)
            self.weights = job.install[0].name
        elif ok:
            self.adapters |= {item.name for item in job.install}
            self.adapters -= set(job.retire)
        body = PolicyInstalled(
            job_id=job.job_id, ok=ok, message="" if ok else "engine http://127.0.0.1:1 is down", engines=["http://127.0.0.1:1"],
            installed=[item.name for item in job.install], duration_seconds=0.4, pause_seconds=0.02, num_bytes=1000,
            density=None if job.transfer is Transfer.ADAPTER else 0.01,
        )  # fmt: skip
        self.send("installed", body, run_id=job.run_id, attempt=job.run_attempt)
