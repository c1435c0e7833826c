"""Claim: a turn through the session server costs less than 2 ms (p50) over asking the engine directly, flat up to
1,000 open sessions and 100 turns.

Three processes, as in production: an engine that speaks SGLang's API and answers at once with tokens of the tiny
model's vocabulary (so that what is measured is not sampling), the session server, and this one. Every turn is asked
twice, in random order: once of the engine itself with exactly the ids that the session sends, once of the session with
the whole conversation as JSON. Both through httpx with one kept-alive connection. Prints one JSON object.
Run: `python benchmarks/session_overhead.py [--turns 100] [--sessions 1 100 1000]`.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny

ROOT = Path(__file__).resolve().parents[1]
AIM_MS = 2.0
SECRET = "bench"
REPLY = "The answer to that is, as far as I can see, " + "twelve. " * 2
QUESTION = "And what comes after that, when everything is counted again?"


def run_engine(port: int, model: str) -> None:
    """SGLang's /generate and /model_info with a fixed answer."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from gpu_workers.sessions.chat import load_template

    template = load_template(Path(model))
    ids = [*template.encode(REPLY), template.eos_id]
    meta = {
        "finish_reason": {"type": "stop", "matched": template.eos_id},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
    }
    answer = json.dumps({"output_ids": ids, "text": REPLY, "meta_info": meta}).encode()
    info = json.dumps({"model_path": model, "weight_version": "0"}).encode()

    async def generate(request: Request) -> Response:
        json.loads(await request.body())
        return Response(answer, media_type="application/json")

    async def describe(request: Request) -> Response:
        return Response(info if "info" in request.url.path else b'{"data": []}', media_type="application/json")

    routes = [
        Route("/generate", generate, methods=["POST"]),
        Route("/model_info", describe),
        Route("/v1/models", describe),
    ]
    uvicorn.run(Starlette(routes=routes), port=port, log_level="error", access_log=False)


def run_server(port: int, engine_url: str, home: str) -> None:
    import contextlib
    from collections.abc import AsyncIterator

    import uvicorn
    from starlette.applications import Starlette

    from gpu_workers.serving.errors import ApiError, render_error
    from gpu_workers.serving.session_routes import session_routes
    from gpu_workers.serving.session_server import SessionServer
    from gpu_workers.sessions.limits import SessionLimits

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        limits = SessionLimits(max_session_tokens=2**22)
        engines = [SGLangEngine(engine_url)]
        app.state.sessions = SessionServer(Path(home) / "sessions", engines, Path(home), SECRET, limits)
        yield

    app = Starlette(routes=session_routes(), exception_handlers={ApiError: render_error}, lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="error", access_log=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def start(mode: str, port: int, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, __file__, "--as", mode, str(port), *arguments], env=environment)


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            httpx.get(url)
            return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise SystemExit(f"{url} did not start")


class Side:
    """The session server's side: open sessions and one conversation that grows."""

    def __init__(self, url: str) -> None:
        self.client = httpx.AsyncClient(base_url=url, timeout=60)
        self.messages: list[dict[str, Any]] = []

    async def open(self) -> dict[str, Any]:
        answer = await self.client.post("/sessions", json={}, headers={"X-Ratchet-Worker-Secret": SECRET})
        made: dict[str, Any] = answer.raise_for_status().json()
        return made

    async def ask(self, session: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": "m", "messages": messages, "max_tokens": 64}
        headers = {"Authorization": f"Bearer {session['token']}"}
        answer = await self.client.post(f"{session['base_path']}/chat/completions", json=body, headers=headers)
        said: dict[str, Any] = answer.raise_for_status().json()
        return said


async def play(
    side: Side, engine: SGLangEngine, session: dict[str, Any], turns: int, chance: random.Random
) -> list[Any]:
    """Milliseconds of every turn, directly and through the session."""
    messages: list[dict[str, Any]] = []
    direct_ids: list[int] = []
    rows = []
    for turn in range(turns):
        messages.append({"role": "user", "content": QUESTION})
        times = {}
        for how in chance.sample(["direct", "session"], 2):
            started = time.perf_counter()
            if how == "direct":
                # As many ids as the session sends in this turn.
                num_ids = len(direct_ids) + len(QUESTION) + 30
                ids = (direct_ids + [7] * num_ids)[:num_ids]
                await engine.generate(GenerateRequest(ids, Sampling(max_new_tokens=64), request_id=f"d{turn}"))
            else:
                answer = await side.ask(session, messages)
            times[how] = 1000 * (time.perf_counter() - started)
        messages.append(answer["choices"][0]["message"])
        direct_ids = [7] * answer["usage"]["total_tokens"]
        rows.append((times["direct"], times["session"]))
    return rows


def summary(rows: list[tuple[float, float]]) -> dict[str, float]:
    direct, session = ([row[i] for row in rows] for i in (0, 1))
    over = [s - d for d, s in rows]
    return {
        "direct_p50_ms": round(statistics.median(direct), 2),
        "session_p50_ms": round(statistics.median(session), 2),
        "overhead_p50_ms": round(statistics.median(over), 2),
        "overhead_p90_ms": round(statistics.quantiles(over, n=10)[-1], 2),
        "overhead_least_ms": round(min(session) - min(direct), 2),
    }


async def measure(options: argparse.Namespace, server_url: str, engine_url: str, pid: int) -> dict[str, Any]:
    import psutil

    side, engine, chance = Side(server_url), SGLangEngine(engine_url), random.Random(0)
    server, result, opened = psutil.Process(pid), {}, list[dict[str, Any]]()
    await play(side, engine, await side.open(), 20, chance)  # warm
    for number in options.sessions:
        while len(opened) < number:  # each with a turn of its own
            opened.append(await side.open())
            await side.ask(opened[-1], [{"role": "user", "content": QUESTION}])
        rows: list[list[tuple[float, float]]] = []
        cpu_before = server.cpu_times()
        for session in chance.sample(opened, min(options.repeats, len(opened))):
            rows.append(await play(side, engine, session, options.turns, chance))
        cpu = server.cpu_times()
        num_turns = sum(len(played) for played in rows)
        tenth = max(options.turns // 10, 1)
        result[f"{number} open"] = {
            "first turns": summary([row for played in rows for row in played[:tenth]]),
            "last turns": summary([row for played in rows for row in played[-tenth:]]),
            "all turns": summary([row for played in rows for row in played]),
            "server_cpu_ms_a_turn": round(
                1000 * (cpu.user + cpu.system - cpu_before.user - cpu_before.system) / num_turns, 2
            ),
            "server_rss_mib": server.memory_info().rss >> 20,
        }
    await side.client.aclose()
    await engine.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--repeats", type=int, default=3, help="conversations at each number of open sessions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        model = tiny.prepare(Path(home))
        config = model / "config.json"  # room for a hundred turns
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 65536}))
        ports = free_port(), free_port()
        engine_url, server_url = (f"http://127.0.0.1:{port}" for port in ports)
        processes = [start("engine", ports[0], str(model)), start("server", ports[1], engine_url, home)]
        try:
            wait_for(f"{engine_url}/model_info")
            wait_for(f"{server_url}/sessions/x")
            result = asyncio.run(measure(options, server_url, engine_url, processes[1].pid))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    load = os.getloadavg()[0]
    print(
        json.dumps({"aim_overhead_p50_ms": AIM_MS, "load": round(load, 1), "turns": options.turns, **result}, indent=2)
    )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--as":
        mode, port, *rest = sys.argv[2:]
        {"engine": run_engine, "server": run_server}[mode](int(port), *rest)
    else:
        main()
