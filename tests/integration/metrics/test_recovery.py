"""Web, ingest, Valkey and PostgreSQL are killed during a live run: clients end with exactly the points of the database,
and every process lives and does its work.

Real processes under the supervisor, a worker that logs all the while, a websocket page and a REST client. Takes
minutes: `make test-recovery` runs it, `make test` does not.
"""

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from gpu_workers.celery import make_app
from gpu_workers.contracts import queues
from gpu_workers.reporting import CeleryReporter, PointStream
from ratchet.services.home import broker_url
from ratchet.services.marks import marked_processes, server_processes
from ratchet.services.processes import PROCESSES
from tests.integration.services.machine import Machine, free_port, wait_for

pytestmark = pytest.mark.skipif(os.environ.get("RATCHET_RECOVERY") != "1", reason="minutes long: make test-recovery")

KEYS = 5
PATIENCE_SECONDS = 240.0
QUEUES = {  # of each worker process
    "control": (queues.CONTROL,),
    "ingest": (queues.INGEST,),
    "heartbeat": (queues.HEARTBEAT,),
    "webhook": (queues.WEBHOOK,),
    "rollout": (queues.ROLLOUT, queues.VERIFY),
    "fleet": (queues.FLEET,),
    "train": (queues.TRAIN,),
}
Point = tuple[str, int, str]  # name, step, value as text

SETUP = """
import json, msgspec
from django.test import Client
from apps.accounts.services import issue_token
from apps.runs.models import Run, RunState
from gpu_workers.contracts.runspec import parse_run_spec
from tests.support.worlds import make_world, run_spec
world = make_world()
spec = msgspec.to_builtins(parse_run_spec(run_spec()))
run = Run.objects.create(project=world.project, number=1, spec=spec, spec_hash="x" * 64, suite=world.suite,
    policy=world.policy, total_steps=9, state=RunState.PAUSED)
client = Client()
client.force_login(world.engineer)
token = issue_token(user=world.engineer, name="t", by=None).secret
print(json.dumps([str(run.pk), client.cookies["sessionid"].value, token]))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "home", {"RATCHET_PORT": str(free_port()), "RATCHET_METRICS_PORT": str(free_port())})
    made.up("--only", ",".join(("postgres", "valkey", "web", "beat", *QUEUES)))
    yield made
    made.close()


class Worker(threading.Thread):
    """Logs a step of five metrics twenty times a second; NaN among them."""

    def __init__(self, machine: Machine, run: str) -> None:
        super().__init__(name="worker", daemon=True)
        app = make_app(broker_url(machine.home.valkey_url))
        self.stream = PointStream(CeleryReporter(app), run_id=run, source="recovery")
        self.logged: set[Point] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        step = 0
        while not self.stopping.wait(0.05):
            values = {f"m{key}": float("nan") if step % 50 == key else step * 0.1 + key for key in range(KEYS)}
            self.stream.log(step, values)
            self.logged |= {(name, step, shown(value)) for name, value in values.items()}
            step += 1
        self.stream.close()


def shown(value: Any) -> str:
    return "NaN" if value in ("NaN", None) or value != value else repr(float(value))


class View:
    """What a client holds, whichever way it came."""

    def __init__(self) -> None:
        self.points: Counter[Point] = Counter()
        self.cursor = 0
        self.refetches = self.failures = 0

    async def learn(self, state: dict[str, Any], http: httpx.AsyncClient, run: str) -> None:
        if state["refetch"]:
            answer = await http.get(f"/api/v1/runs/{run}/metrics/", params={"every": "true"})
            answer.raise_for_status()
            self.points = Counter(
                (series["name"], step, shown(value))
                for series in answer.json()
                for step, value in zip(series["steps"], series["values"], strict=True)
            )
            self.cursor = int(answer.headers["Ratchet-Cursor"])
            self.refetches += 1
            return
        fresh = [point for point in state["points"] if point[0] > self.cursor]
        self.points.update((name, step, shown(value)) for _, name, step, value, *_ in fresh)
        self.cursor = max(self.cursor, state["cursor"]["points"])


async def page(view: View, base: str, run: str, cookie: str, done: asyncio.Event) -> None:
    """As the run's page does: asks by its cursor, every few seconds again, reconnects for ever."""
    headers = {"Cookie": f"sessionid={cookie}", "Origin": base}
    async with httpx.AsyncClient(base_url=base, headers={"Cookie": headers["Cookie"]}, timeout=10) as http:
        while not done.is_set():
            try:
                url = f"{base.replace('http', 'ws')}/ws/runs/{run}/"
                async with websockets.connect(url, additional_headers=headers, max_size=None) as socket:
                    while not done.is_set():
                        await socket.send(json.dumps({"cursor": view.cursor, "events": 0}))
                        for _ in range(8):
                            try:
                                message = await asyncio.wait_for(socket.recv(), 1.0)
                            except TimeoutError:
                                break
                            await view.learn(json.loads(message), http, run)
            except (OSError, websockets.WebSocketException, httpx.HTTPError, TimeoutError):
                view.failures += 1
                await asyncio.sleep(0.5)


async def poller(view: View, base: str, run: str, token: str, done: asyncio.Event) -> None:
    """As a program does: asks the REST API."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=10) as http:
        while not done.is_set():
            try:
                answer = await http.get(f"/api/v1/runs/{run}/live/", params={"cursor": view.cursor})
                answer.raise_for_status()
                await view.learn(answer.json(), http, run)
            except httpx.HTTPError:
                view.failures += 1
            await asyncio.sleep(0.5)


def kill(machine: Machine, name: str) -> None:
    """SIGKILL for a process of the supervisor, and wait until another runs in its place."""
    found = [*server_processes(machine.home), *marked_processes(f"{machine.root}:")]
    old = {process.pid for process in found if process.name == name}
    assert old, f"{name} does not run"
    for pid in sorted(old):  # of PostgreSQL the parent first: its children may be gone before their turn
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        running = [*server_processes(machine.home), *marked_processes(f"{machine.root}:")]
        return any(process.name == name and process.pid not in old for process in running)

    assert wait_for(is_back, 60), f"{name} did not come back"


def num_jobs(machine: Machine, name: str, job: str = "") -> float:
    """Jobs that a worker process has ended since it started, as it tells Prometheus; 0 while it does not answer."""
    place = next(place for place, spec in enumerate(PROCESSES) if spec.name == name)
    try:
        answer = httpx.get(f"http://127.0.0.1:{int(machine.variables['RATCHET_METRICS_PORT']) + place}/metrics")
    except httpx.HTTPError:
        return 0
    lines = (line for line in answer.text.splitlines() if line.startswith(f'ratchet_jobs_total{{job="{job}'))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def assert_every_process_works(machine: Machine) -> None:
    """Each worker takes a job from each of its queues, and beat goes on to send ticks."""
    app, job = make_app(broker_url(machine.home.valkey_url)), "celery.accumulate"
    before = {name: num_jobs(machine, name, job) for name in QUEUES}
    for name in [name for names in QUEUES.values() for name in names]:
        app.send_task(job, args=[1], queue=name)
    for name, own in QUEUES.items():
        done = lambda name=name, own=own: num_jobs(machine, name, job) >= before[name] + len(own)  # noqa: E731
        assert wait_for(done, PATIENCE_SECONDS), f"{name} lives and consumes nothing: {machine.living()}"
    ticks = num_jobs(machine, "control", "apps.runs.jobs.tick")
    assert wait_for(lambda: num_jobs(machine, "control", "apps.runs.jobs.tick") > ticks, 60), "beat sends no ticks"
    assert set(machine.living()) == {"postgres", "valkey", "web", "beat", *QUEUES}


def test_clients_end_with_exactly_the_points_of_the_database(machine: Machine) -> None:
    from tests.integration.loop.world import manage

    run, cookie, token = json.loads(manage(machine, "shell", "-v", "0", "-c", SETUP).splitlines()[-1])
    base = f"http://127.0.0.1:{machine.variables['RATCHET_PORT']}"
    views = asyncio.run(live(machine, run, base, cookie, token))
    with machine.connect() as database:
        query = "SELECT revision, num_points FROM metrics_metrichead WHERE run_id = %s"
        revision, num_points = database.execute(query, [run]).fetchone()
        receipts = "SELECT sum(num_points), count(DISTINCT seq) FROM metrics_metricbatch WHERE run_id = %s"
        assert database.execute(receipts, [run]).fetchone() == (num_points, revision)
    for name, view in views.items():
        assert sum(view.points.values()) == num_points, name
        assert max(view.points.values()) == 1, name
        assert view.cursor == revision, name
        assert view.failures > 0, f"{name} noticed nothing: the kills did not happen"


async def live(machine: Machine, run: str, base: str, cookie: str, token: str) -> dict[str, View]:
    views, done = {"page": View(), "program": View()}, asyncio.Event()
    clients = [
        asyncio.create_task(page(views["page"], base, run, cookie, done)),
        asyncio.create_task(poller(views["program"], base, run, token, done)),
    ]
    worker = Worker(machine, run)
    worker.start()
    await asyncio.sleep(3)
    for name in ("web", "ingest", "valkey", "postgres"):
        await asyncio.to_thread(kill, machine, name)
        await asyncio.sleep(4)
    await asyncio.to_thread(assert_every_process_works, machine)
    worker.stopping.set()
    await asyncio.to_thread(worker.join)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(set(view.points) != worker.logged for view in views.values()):
        if time.monotonic() > deadline:
            missing = {name: len(worker.logged - set(view.points)) for name, view in views.items()}
            raise AssertionError(f"of {len(worker.logged)} points some never came: {missing}")
        await asyncio.sleep(0.5)
    done.set()
    await asyncio.gather(*clients)
    return views
