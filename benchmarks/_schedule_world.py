"""The production scheduler and rollout workers in virtual time: real reconciler, services, database and `run_group`,
with an engine and a trainer that only take time. Nothing waits for a clock, so a run is as exact as its seeds."""

import asyncio
import hashlib
import os
import random
import selectors
import shutil
import sys
import tempfile
import time as real_time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
GROUP_SIZE = 8
MEAN_SECONDS = 20.0  # of an episode
HOP_SECONDS = 0.05  # of a message, and of what the control plane does with it
INSTALL_SECONDS = 0.5
LOOK_SECONDS = 5.0  # between two looks of the fleet worker at its engines
CONTROL = ThreadPoolExecutor(1)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while there is work and jumps to the next timer when there is none."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def draw_seconds(distribution: str, seed: int) -> float:
    """Length of an episode: log-normal σ = 1 or Pareto α = 1.5, both with the same mean."""
    chance = random.Random(f"length/{seed}")
    if distribution == "lognormal":
        return MEAN_SECONDS * chance.lognormvariate(-0.5, 1.0)
    return MEAN_SECONDS / 3.0 * chance.paretovariate(1.5)


@dataclass
class Setting:
    """One run: `concurrent` episodes the engines take at once, a batch is as many; `ratio`: rollout over training."""

    distribution: str
    concurrent: int
    ratio: float
    bound: int
    steps: int
    seed: int = 1
    rollout: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return self.concurrent // GROUP_SIZE

    @property
    def train_seconds(self) -> float:
        return MEAN_SECONDS / self.ratio  # a batch's worth of episodes keeps all places busy for MEAN_SECONDS


class Simulation:
    """Stands where broker, engines, trainer and fleet are; everything between them is the product."""

    def __init__(self, setting: Setting, store_url: str, model: Path) -> None:
        from gpu_workers.contracts.store import ObjectStore

        self.setting, self.model = setting, model
        self.store = ObjectStore(store_url)
        self.places = asyncio.Semaphore(setting.concurrent)
        self.spent: dict[str, float] = defaultdict(float)  # group -> seconds of engine places
        self.batches: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        self.arrived = asyncio.Event()
        self.step_ends: list[float] = []
        self.train_busy: list[tuple[float, float]] = []
        self.engine_busy: list[tuple[float, float]] = []
        self.advance_due = False
        self.running = self.queued = 0  # requests in the engines
        self.control_seconds = 0.0  # CPU
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[Any]] = set()

    # -- messaging

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.loop.stop()
            raise task.exception()  # type: ignore[misc]

    def send_rollout(self, job: Any) -> None:
        self.spawn(self.roll(job))

    def send_train(self, job: Any) -> None:
        self.spawn(self.train(job))

    def send_fleet(self, job: Any) -> None:
        self.spawn(self.install(job))

    def signal_groups(self, signal: Any) -> None:
        from gpu_workers.rollout.running import deliver

        self.loop.call_later(HOP_SECONDS, deliver, signal)

    def put(self, queue: str, payload: dict[str, Any]) -> None:
        self.batches[queue].append(payload)
        self.loop.call_later(HOP_SECONDS, self.arrived.set)

    def request_dataset(self, run_id: Any) -> None:
        raise AssertionError("no supervised runs here")

    def request_advance(self, run_id: Any, delay_seconds: float = 0.0) -> None:
        if not self.advance_due:
            self.advance_due = True
            self.loop.call_later(HOP_SECONDS + delay_seconds, self.advance, str(run_id))

    def advance(self, run_id: str) -> None:
        from apps.runs import jobs

        self.advance_due = False
        self.control(jobs.advance, run_id)

    def control(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Work of the control plane: in a thread of its own while the loop, and with it time, stands still."""
        before = real_time.process_time()
        try:
            return CONTROL.submit(work, *arguments).result()
        finally:
            self.control_seconds += real_time.process_time() - before

    async def report(self, kind: str, body: Any, job: Any, name: str, token: int = 0) -> None:
        from apps.runs import jobs
        from gpu_workers.contracts.groups import jsonable
        from gpu_workers.contracts.messages import Report

        await asyncio.sleep(HOP_SECONDS)
        attempt = getattr(job, "run_attempt", None) or getattr(job, "attempt", 0)
        report = Report(
            report_id=name, kind=kind, body=jsonable(body), run_id=job.run_id, run_attempt=attempt, token=token
        )
        self.control(jobs.ingest_report, jsonable(report))

    # -- the data plane

    async def roll(self, job: Any) -> None:
        from gpu_workers.rollout.group import run_group
        from gpu_workers.rollout.running import GroupCancelled

        await asyncio.sleep(HOP_SECONDS)
        try:
            report = await run_group(job, self.services())
        except GroupCancelled:
            return
        await self.report("group", report, job, f"group.{job.group_id}.{job.attempt}")

    def services(self) -> Any:
        import msgspec

        from gpu_workers.contracts.tasks import TaskBundle
        from gpu_workers.rollout.group import GroupServices

        return GroupServices(
            store=self.store,
            connect=lambda url: _Engine(self),  # type: ignore[arg-type,return-value]
            engine_urls=("http://engine",),
            models_dir=self.model.parent,
            backend=None,  # type: ignore[arg-type]
            verifier=lambda task: _Verifier(),
            load_task=lambda key: msgspec.json.decode(self.store.get(key), type=TaskBundle),
            make_environment=lambda task: _World(),  # type: ignore[arg-type,return-value]
        )

    async def watch(self) -> None:
        """The fleet worker looks at the engines."""
        from apps.runs import jobs
        from gpu_workers.contracts.groups import jsonable
        from gpu_workers.contracts.messages import Report, WorkerSample

        while True:
            await asyncio.sleep(LOOK_SECONDS)
            load = {"running_requests": float(self.running), "queued_requests": float(self.queued)}
            body = jsonable(WorkerSample(source="engine", metrics=load, time=self.now))
            report = Report(report_id=f"sample.{id(self)}.{self.now}", kind="sample", body=body, worker="fleet")
            self.control(jobs.ingest_report, jsonable(report))

    async def install(self, job: Any) -> None:
        from gpu_workers.contracts.messages import PolicyInstalled

        await asyncio.sleep(INSTALL_SECONDS)
        _Engine.adapters |= {item.name for item in job.install}
        answer = PolicyInstalled(job_id=job.job_id, ok=True, installed=[i.name for i in job.install], engines=["e"])
        await self.report("installed", answer, job, f"installed.{job.job_id}.{self.now}")

    async def train(self, job: Any) -> None:
        from apps.runs import jobs
        from gpu_workers.contracts.groups import jsonable
        from gpu_workers.contracts.messages import Heartbeat, StepReport, TrainerFinished, TrainerStarted

        token, name = job.token, f"{job.run_id}.a{job.attempt}"
        beat = Heartbeat(run_id=job.run_id, attempt=job.attempt, token=token, worker="scripted")
        self.control(jobs.heartbeat, jsonable(beat))
        await self.report("trainer_started", TrainerStarted(), job, f"{name}.started", token)
        version, done, waiting = 0, list[str](), dict[int, dict[str, Any]]()
        queue = self.batches[f"batches.{job.run_id}.{job.attempt}"]
        while version < self.setting.steps:
            waiting |= {message["index"]: message for message in queue if "index" in message}
            queue.clear()
            if version not in waiting:
                self.arrived.clear()
                await self.arrived.wait()
                continue
            batch = waiting.pop(version)
            started = self.now
            await asyncio.sleep(self.setting.train_seconds)
            version += 1
            done.append(batch["batch_id"])
            self.train_busy.append((started, self.now))
            self.step_ends.append(self.now)
            key = f"runs/{job.run_id}/a{job.attempt}/v{version:06d}"
            digest = hashlib.sha256(key.encode()).hexdigest()
            step = StepReport(
                version=version, batch_id=batch["batch_id"], batch_ids=list(done), checkpoint=key,
                adapter=f"{key}/adapter", sha256=digest, num_bytes=1, train_seconds=self.setting.train_seconds,
            )  # fmt: skip
            self.spawn(self.report("step", step, job, f"{name}.v{version}", token))
        await self.report("trainer_finished", TrainerFinished(version=version), job, f"{name}.finished", token)

    @property
    def now(self) -> float:
        return self.loop.time()


class _Engine:
    """Takes a place for as long as the episode is long, and answers with its seed."""

    adapters: set[str] = set()

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def generate(self, request: Any) -> Any:
        from gpu_workers.contracts.seams import GenerateResult
        from gpu_workers.models import tiny

        simulation = self._simulation
        seconds = draw_seconds(simulation.setting.distribution, request.sampling.seed)
        queued = simulation.now
        simulation.queued += 1
        try:
            await simulation.places.acquire()
        finally:
            simulation.queued -= 1
        started = simulation.now
        simulation.running += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            simulation.running -= 1
            simulation.places.release()
            simulation.engine_busy.append((started, simulation.now))
            simulation.spent[request.request_id.split(".")[0]] += simulation.now - started
        passes = random.Random(f"reward/{request.sampling.seed}").random() < 0.5
        return GenerateResult([10 + passes, tiny.EOS_ID], [-1.0, -1.0], "stop", queue_seconds=started - queued)

    async def info(self) -> Any:
        from gpu_workers.contracts.seams import EngineInfo

        return EngineInfo(str(self._simulation.model), "default", tuple(self.adapters))

    async def abort(self, request_id: str) -> None:
        return None

    async def close(self) -> None:
        return None


class _World:
    """An environment without tools."""

    def __init__(self) -> None:
        from gpu_workers.contracts.groups import SandboxRecord

        self.record = SandboxRecord(backend="none")

    async def reset(self) -> None:
        return None

    async def state(self) -> dict[str, bytes]:
        return {}

    async def close(self) -> None:
        return None


class _Verifier:
    """Passes one of the two answers there are."""

    async def verify(self, task: Any, episode: Any) -> Any:
        from gpu_workers.contracts.seams import VerifierResult

        good = hash_of(episode.answer) % 2 == 1
        return VerifierResult("pass" if good else "fail", float(good), "OK" if good else "WRONG_ANSWER")


def hash_of(text: str) -> int:
    return sum(text.encode())


@contextmanager
def database() -> Iterator[SimpleNamespace]:
    """Django on an embedded PostgreSQL of its own, with a suite of 256 tasks and an object store in memory's reach."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "ratchet.settings.test"
    os.environ["RATCHET_ENV"] = "test"
    home = Path(tempfile.mkdtemp(prefix="ratchet-bench-"))
    os.environ["RATCHET_HOME"] = str(home)
    import logging

    import django

    django.setup()
    logging.disable(logging.WARNING)
    from django.conf import settings
    from django.db import connections
    from django.test.utils import setup_databases

    from gpu_workers.models import tiny
    from ratchet.env import load_env
    from ratchet.services.postgres import EmbeddedPostgres

    env = load_env()
    server = EmbeddedPostgres(
        env.home.postgres, env.home.sockets, env.home.logs / "pg.log", dict(os.environ), durable=False
    )
    process = server.start()
    settings.OBJECT_STORE_URL = f"file://{home}/objects"
    setup_databases(verbosity=0, interactive=False)
    try:
        tiny.prepare(home)
        yield SimpleNamespace(
            home=home, store=settings.OBJECT_STORE_URL, model=home / "models" / tiny.NAME, server=process
        )
    finally:
        CONTROL.submit(connections.close_all).result()
        connections.close_all()
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def make_project(place: SimpleNamespace, num_tasks: int = 256) -> SimpleNamespace:
    """A project with a ready suite whose tasks workers can load, and a bare policy."""
    import msgspec

    from apps.accounts.models import Membership, Project, Role, User
    from apps.policies.models import BaseModel, Policy, PolicyKind
    from apps.tasks.models import SplitName, Suite, SuiteState, Task, TaskState
    from gpu_workers.contracts.enums import VerifierKind
    from gpu_workers.contracts.store import ObjectStore
    from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec

    slug = f"bench-{Project.objects.count()}"
    project = Project.objects.create(slug=slug, title=slug)
    user = User.objects.create_user(slug, password="a long password")
    Membership.objects.create(user=user, project=project, role=Role.ENGINEER)
    suite = Suite.objects.create(
        project=project, slug="s", title="S", distribution="d", failure_modes=[{"code": "X", "meaning": "x"}],
        content_hash="c" * 64, state=SuiteState.READY,
    )  # fmt: skip
    store = ObjectStore(place.store)
    for position in range(num_tasks + 1):
        bundle = TaskBundle(
            key=f"t{position}", prompt=[Message(role="user", content=f"task {position}")],
            verifier=VerifierSpec(kind=VerifierKind.EXACT, expected="x"),
        )  # fmt: skip
        Task.objects.create(
            suite=suite, key=bundle.key, split=SplitName.TRAIN if position else SplitName.HELDOUT, position=position,
            state=TaskState.READY, bundle=store.put(msgspec.json.encode(bundle)), task_hash=f"{position:064d}",
        )  # fmt: skip
    base, _ = BaseModel.objects.get_or_create(slug="tiny", defaults={"title": "Tiny"})
    Policy.objects.create(project=project, slug="base", title="Base", kind=PolicyKind.PROMPT, base_model=base)
    return SimpleNamespace(project=project, user=user)


@contextmanager
def virtual_clock(loop: VirtualLoop) -> Iterator[None]:
    """`time` of the workers' modules and Django's clock follow the loop."""
    from django.utils import timezone

    import gpu_workers.rollout.episode as episode
    import gpu_workers.rollout.group as group

    clock = SimpleNamespace(
        time=lambda: EPOCH + loop.now, monotonic=lambda: loop.now, perf_counter=lambda: loop.now, sleep=real_time.sleep
    )
    real = (group.time, episode.time, timezone.now)
    group.time = episode.time = clock  # type: ignore[assignment]
    timezone.now = lambda: datetime.fromtimestamp(EPOCH + loop.now, UTC)  # type: ignore[assignment]
    try:
        yield
    finally:
        group.time, episode.time, timezone.now = real  # type: ignore[assignment]


def use(simulation: Simulation) -> None:
    """Send the product's messages to the simulation."""
    from apps.runs import messaging

    for name in (
        "send_rollout", "send_train", "send_fleet", "put", "request_advance", "request_dataset", "signal_groups",
    ):  # fmt: skip
        setattr(messaging, name, getattr(simulation, name))


def play(setting: Setting, place: SimpleNamespace) -> dict[str, Any]:
    """One run from submission to its last step, in virtual time."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    with virtual_clock(loop):
        return loop.run_until_complete(_play(setting, place))


async def _play(setting: Setting, place: SimpleNamespace) -> dict[str, Any]:
    from apps.runs import jobs
    from apps.runs.services import submit_run

    simulation = Simulation(setting, place.store, place.model)
    use(simulation)
    _Engine.adapters = set()
    spec = {
        "suite": "s", "policy": "base", "steps": setting.steps, "seed": setting.seed,
        "rollout": {
            "prompts_per_batch": setting.batch_size, "group_size": GROUP_SIZE, "max_staleness": setting.bound,
            "group_timeout_seconds": 5000.0, "max_requeues": 8, **setting.rollout,
        },
        "health": {"stall_seconds": 0},
    }  # fmt: skip

    def submit() -> Any:
        world = make_project(place)
        return submit_run(project=world.project, spec=spec, by=world.user)

    wall = real_time.monotonic()
    run = simulation.control(submit)
    simulation.control_seconds = 0.0
    simulation.spawn(simulation.watch())
    while run.state not in ("trained", "succeeded", "failed", "halted"):
        await asyncio.sleep(10.0)
        simulation.control(jobs.tick)
        simulation.control(beat, run)
        run = simulation.control(_fresh, run)
    assert run.state == "trained", (run.state, run.status_message)
    for task in list(simulation.tasks):
        task.cancel()
    counts = simulation.control(_count, run, setting.bound, dict(simulation.spent))
    cpu = 1e3 * simulation.control_seconds / (counts["groups"] * GROUP_SIZE)
    return summarise(setting, simulation, counts["wasted_share"]) | counts | {
        "control_cpu_ms_per_episode": round(cpu, 3), "wall_seconds": round(real_time.monotonic() - wall, 1),
    }  # fmt: skip


def _fresh(run: Any) -> Any:
    return type(run).objects.get(pk=run.pk)


def _count(run: Any, bound: int, spent: dict[str, float]) -> dict[str, Any]:
    trained = run.groups.filter(outcome="trained")
    used = sum(spent.get(str(key), 0.0) for key in trained.values_list("id", flat=True))
    wasted = sum(spent.get(str(key), 0.0) for key in run.groups.filter(outcome="stale").values_list("id", flat=True))
    return {
        "groups": run.groups.count(),
        "stale": run.groups.filter(outcome="stale").count(),
        "wasted_share": round(wasted / (used + wasted), 4),  # of the engines' time, on groups that went stale
        "over_bound": trained.filter(age__gt=bound).count(),
        "ages": sorted(set(trained.values_list("age", flat=True))),
    }


def beat(run: Any) -> None:
    """The trainer lives."""
    from django.utils import timezone

    from apps.runs.models import RunAttempt
    from apps.runs.services.attempts import LEASE

    RunAttempt.objects.filter(run=run).exclude(state="ended").update(lease_expires_at=timezone.now() + 4 * LEASE)


def summarise(setting: Setting, simulation: Simulation, wasted: float) -> dict[str, Any]:
    """Time of a step once the pipeline has filled and before it drains, and the share of what the busier side allows if
    it is never idle and nothing is generated in vain."""
    first, last = setting.bound + 2, setting.steps - setting.bound - 1
    if setting.bound == 0:
        first, last = 0, setting.steps
    start = simulation.step_ends[first - 1] if first else 0.0
    end = simulation.step_ends[last - 1]
    span = end - start
    busy = sum(max(0.0, min(stop, end) - max(begin, start)) for begin, stop in simulation.engine_busy)
    trained = sum(max(0.0, min(stop, end) - max(begin, start)) for begin, stop in simulation.train_busy)
    engine_busy, trainer_busy = busy / (span * setting.concurrent), trained / span
    return {
        **{name: getattr(setting, name) for name in ("distribution", "concurrent", "ratio", "bound", "steps")},
        "seconds_per_step": round(span / (last - first), 3),
        "whole_run_seconds": round(simulation.step_ends[-1], 1),
        "engine_busy": round(engine_busy, 4),
        "trainer_busy": round(trainer_busy, 4),
        "share_of_limit": round(max(engine_busy * (1 - wasted), trainer_busy), 4),
    }
