"""Claim: points are durable in PostgreSQL at least 10 × as fast as by MLflow's log_batch, and as fast as by trackio.

All sides in one run, one after the other, repeated. Ours goes the whole way: worker's stream (its own
batches, up to 5,000) → Valkey → ingest process → committed in PostgreSQL with fsync. MLflow: `log_batch` of 1,000, the
most it takes, to its server on SQLite (one worker: more were killed as unresponsive on two busy cores), with one client
and with four.
trackio: `log` of 10 keys (and of 1 key) until `finish` has made them durable, as its users do.
The peers live in a virtual environment of their own, `PEERS_PYTHON=/path/to/bin/python`: mlflow 3.17.2, trackio 0.43.0.
Prints one JSON object. Run: `python benchmarks/ingest.py [--points N] [--peer-points N] [--rounds N]`.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _plane import conditions, free_port, plane

AIM_MLFLOW, AIM_TRACKIO = 10.0, 1.0

MLFLOW_CLIENT = """
import sys, time, threading
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
url, points, clients = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = MlflowClient(url)
experiment = client.create_experiment(f"bench-{time.time()}")
runs = [client.create_run(experiment).info.run_id for _ in range(clients)]
def work(run_id, count):
    own = MlflowClient(url)
    for start in range(0, count, 1000):
        now, steps = int(time.time() * 1000), range(start, start + 1000)
        own.log_batch(run_id, [Metric("loss", float(i), now, i) for i in steps])
started = time.perf_counter()
threads = [threading.Thread(target=work, args=(run_id, points // clients)) for run_id in runs]
[t.start() for t in threads]; [t.join() for t in threads]
print(points / (time.perf_counter() - started))
"""
TRACKIO = """
import sys, time
import trackio
points, keys = int(sys.argv[1]), int(sys.argv[2])
trackio.init(project=f"bench-{time.time_ns()}", embed=False)
started = time.perf_counter()
for step in range(points // keys):
    trackio.log({f"m{k}": float(step + k) for k in range(keys)}, step=step)
trackio.finish()
print("RATE", points / (time.perf_counter() - started))
"""


def ours(run: Any, broker: str, points: int, keys: int, streams: int) -> float:
    """Points a second from the first `log` to the last commit."""
    from apps.metrics.models import MetricHead
    from gpu_workers.celery import make_app
    from gpu_workers.reporting import CeleryReporter, PointStream

    app = make_app(broker)
    before = _stored(MetricHead, run)
    started = time.perf_counter()

    def work(number: int) -> None:
        source = f"{time.time_ns()}-{number}"
        stream = PointStream(CeleryReporter(app), run_id=str(run.pk), source=source)
        names = [f"bench/{keys}-{k}" for k in range(keys)]
        for step in range(points // keys // streams):
            stream.log(step, dict.fromkeys(names, float(step)))
        stream.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while _stored(MetricHead, run) - before < points:
        time.sleep(0.005)
        if time.perf_counter() - started > 300:
            raise SystemExit(f"only {_stored(MetricHead, run) - before} of {points} points arrived")
    return points / (time.perf_counter() - started)


def _stored(head: Any, run: Any) -> int:
    return head.objects.filter(run=run).values_list("num_points", flat=True).first() or 0


class Mlflow:
    """Its server on SQLite, in the peers' environment."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, port = python, free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--artifacts-destination", str(folder), "--workers", "1"]
        log = (folder / "mlflow.log").open("wb")
        self.process = subprocess.Popen(
            [python, "-m", "mlflow", "server", *arguments], stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.3)
        self.close()
        raise SystemExit(f"MLflow did not start: {(folder / 'mlflow.log').read_text()[-2000:]}")

    def measure(self, points: int, clients: int) -> float:
        return float(_peer(self.python, MLFLOW_CLIENT, self.url, points, clients).split()[-1])

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def _peer(python: str, code: str, *arguments: Any, folder: Path | None = None) -> str:
    environment = os.environ | ({"TRACKIO_DIR": str(folder)} if folder else {})
    for name in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE"):
        environment.pop(name, None)
    done = subprocess.run(
        [python, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=400_000)
    parser.add_argument("--peer-points", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    python = os.environ.get("PEERS_PYTHON", "")
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)
        print(f"{name}: {rate:,.0f} points/s", file=sys.stderr)

    with tempfile.TemporaryDirectory() as text, plane("ingest") as machine:
        from apps.runs.models import Run
        from ratchet.services.home import broker_url
        from tests.support.worlds import make_world, run_spec

        world = make_world()
        run = Run.objects.create(
            project=world.project, number=1, spec=run_spec(), spec_hash="x" * 64, suite=world.suite, policy=world.policy
        )
        broker = broker_url(machine.home.valkey_url)
        ours(run, broker, 20_000, 1, 1)  # connections, plans
        peer = Mlflow(python, Path(text)) if python else None
        try:
            for _ in range(options.rounds):
                note("ours, 1 key", ours(run, broker, options.points, 1, 1))
                note("ours, 10 keys", ours(run, broker, options.points, 10, 1))
                note("ours, 10 keys, four streams", ours(run, broker, options.points, 10, 4))
                if peer:
                    note("MLflow, one client", peer.measure(options.peer_points, 1))
                    note("MLflow, four clients", peer.measure(options.peer_points, 4))
                    for keys in (10, 1):
                        folder = Path(text) / f"trackio-{time.time_ns()}"
                        out = _peer(python, TRACKIO, options.peer_points * 2, keys, folder=folder)
                        note(f"trackio, {keys} keys", float(out.split("RATE")[1].split()[0]))
        finally:
            if peer:
                peer.close()
    median = {name: round(statistics.median(values)) for name, values in rates.items()}
    result: dict[str, Any] = {"points_a_second": median, "rounds": options.rounds, **conditions()}
    if python:
        best = max(median["ours, 1 key"], median["ours, 10 keys"])
        result["against_mlflow"] = round(median["ours, 1 key"] / median["MLflow, four clients"], 1)
        result["against_mlflow_one_client"] = round(median["ours, 1 key"] / median["MLflow, one client"], 1)
        result["against_trackio"] = round(median["ours, 10 keys"] / median["trackio, 10 keys"], 2)
        result["best"] = best
        result["ok"] = result["against_mlflow"] >= AIM_MLFLOW and result["against_trackio"] >= AIM_TRACKIO
    print(json.dumps(result))


if __name__ == "__main__":
    main()
