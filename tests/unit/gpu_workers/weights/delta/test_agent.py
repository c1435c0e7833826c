"""The agent on an engine's host: who may ask, what it answers, and what its death costs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.testclient import TestClient

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights.agent.__main__ import main
from gpu_workers.weights.agent.app import MAX_BODY_BYTES, make_app
from gpu_workers.weights.delta import local
from gpu_workers.weights.delta.agents import SECRET_HEADER, BringAnswer, BringRequest, HttpAgent
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.manifest import DELTA
from gpu_workers.weights.delta.transfer import DeltaTransfer
from gpu_workers.weights.served import STARTED, Serving
from ratchet.env import ROOT
from tests.integration.services.machine import free_port
from tests.unit.gpu_workers.weights.delta.chains import Chain, check_whole, make_chain

SECRET = "s" * 40
ASKED = {SECRET_HEADER: SECRET}


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return make_chain(tmp_path, 1, 2, 3)


@pytest.fixture
def client(chain: Chain, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(CheckpointKeeper(chain.store, tmp_path / "cache"), SECRET)) as client:
        yield client


def body(wanted: Wanted, *serves: str) -> bytes:
    return msgspec.json.encode(BringRequest(wanted=wanted, serves=[Serving(path, STARTED) for path in serves]))


def test_a_version_is_brought_and_told(chain: Chain, client: TestClient) -> None:
    assert client.get("/weights/current", headers=ASKED).json() == {"held": None}
    before = chain.file(1, WEIGHTS).parent
    answer = client.post("/weights/bring", content=body(chain.versions[2], str(before), "/none"), headers=ASKED)
    told = msgspec.json.decode(answer.content, type=BringAnswer)
    check_whole(told.held, chain.digests[2])
    assert told.same_bytes == [False, None]
    again = client.post("/weights/bring", content=body(chain.versions[2], told.held.path), headers=ASKED)
    assert msgspec.json.decode(again.content, type=BringAnswer).same_bytes == [True]
    assert client.get("/weights/current", headers=ASKED).json()["held"]["name"] == chain.versions[2].name


@pytest.mark.parametrize("secret", ["", "wrong", "ä"])
def test_nobody_is_served_without_the_secret(chain: Chain, client: TestClient, secret: str) -> None:
    headers = {SECRET_HEADER: secret.encode()}
    assert client.get("/health").status_code == 200
    for answer in (
        client.get("/weights/current", headers=headers),
        client.post("/weights/bring", content=body(chain.versions[1]), headers=headers),
    ):
        assert answer.status_code == 401
        assert "ROLLOUT_AGENT_SECRET" in answer.json()["error"]["message"]
    with pytest.raises(ValueError, match="secret"):
        make_app(CheckpointKeeper(chain.store, Path("x")), "")


def test_bad_requests(chain: Chain, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def post(content: bytes) -> tuple[int, str]:
        answer = client.post("/weights/bring", content=content, headers=ASKED)
        return answer.status_code, answer.json()["error"]["message"]

    assert post(b"{")[0] == post(b'{"wanted": {"name": 1}}')[0] == 400
    assert post(b" " * (MAX_BODY_BYTES + 1))[0] == 413
    status, message = post(body(Wanted(name="n", uri="runs/none", sha256="0")))
    assert status == 409 and "missing" in message
    status, message = post(body(Wanted(name="n", uri="../up", sha256="0")))
    assert status == 409 and "bad object key" in message
    monkeypatch.setattr(CheckpointKeeper, "bring", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    assert post(body(chain.versions[1])) == (502, "read-only")


@pytest.mark.parametrize(
    ("environ", "arguments", "match"),
    [
        ({}, ["--store", "file:///x"], "ROLLOUT_AGENT_SECRET: is empty"),
        ({"ROLLOUT_AGENT_SECRET": SECRET}, [], "--store: is empty"),
        ({"ROLLOUT_AGENT_SECRET": SECRET}, ["--store", "gopher://x/y"], "cannot be opened"),
    ],
)
def test_an_agent_that_cannot_start_says_why(
    environ: dict[str, str],
    arguments: list[str],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("ROLLOUT_AGENT_SECRET", "OBJECT_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main([*arguments, "--cache", str(tmp_path / "c"), "--port", "1"]) == 2
    assert match in capsys.readouterr().err


# -- real processes


@contextmanager
def agent(chain: Chain, cache: Path, port: int, barrier: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """An agent's process; with a barrier it stops there."""
    options = ["--store", chain.store.url, "--cache", str(cache), "--port", str(port)]
    command = [sys.executable, "-m", "gpu_workers.weights.agent", *options]
    if barrier:
        held = (
            "import sys; from tests.unit.gpu_workers.weights.delta.work import BARRIERS; "
            f"from gpu_workers.weights.agent.__main__ import main; BARRIERS[{barrier!r}](); "
            "sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", held, *options]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f".:{ROOT / 'platform'}", "ROLLOUT_AGENT_SECRET": SECRET}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + 600
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


async def until_stopped(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600
    while "\nState:\tT" not in Path(f"/proc/{process.pid}/status").read_text():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_an_agent_killed_half_way_costs_a_try_and_nothing_else(chain: Chain, tmp_path: Path) -> None:
    """Two engines of one host share its agent; while it is dead they go on with what they have."""
    port, cache = free_port(), tmp_path / "agent"
    url = f"http://127.0.0.1:{port}"
    engines = [(name, ScriptedEngine(model_path=str(chain.file(1, WEIGHTS).parent))) for name in ("a", "b")]
    agents = dict.fromkeys(("a", "b"), url)
    transfer = DeltaTransfer(engines, chain.store, tmp_path / "here", agents=agents, secret=SECRET)
    items = {
        version: AdapterInstall(name=wanted.name, uri=wanted.uri, sha256=wanted.sha256, version=version)
        for version, wanted in chain.versions.items()
    }
    with agent(chain, cache, port):
        await transfer.install([items[2]], [])
    with agent(chain, cache, port, barrier="half written") as process:
        trying = asyncio.create_task(transfer.install([items[3]], []))
        await until_stopped(process)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="does not answer") as failed:
            await trying
        assert failed.value.retryable
    assert [engine.weight_version for _, engine in engines] == [items[2].name] * 2
    assert all([await engine.weights_digest() == chain.digests[2] for _, engine in engines])
    with agent(chain, cache, port):
        report = await transfer.install([items[3]], [])
    assert report.num_bytes == chain.file(3, DELTA).stat().st_size, "asked once for both"
    assert all([await engine.weights_digest() == chain.digests[3] for _, engine in engines])
    assert not (tmp_path / "here").exists(), "nothing is kept where no engine is"
    assert CheckpointKeeper(chain.store, cache).current() is not None


async def test_an_agent_that_refuses_or_is_not_there(chain: Chain, tmp_path: Path) -> None:
    keeper = CheckpointKeeper(chain.store, tmp_path / "cache")
    transport = httpx.ASGITransport(make_app(keeper, SECRET))
    wanted = BringRequest(wanted=chain.versions[2])
    with pytest.raises(WorkerError, match=r"agent http://h: the header .* must hold") as refused:
        await HttpAgent("http://h", "other", transport).bring(wanted)
    assert not refused.value.retryable
    chain.file(2, DELTA).unlink()
    with pytest.raises(WorkerError, match=r"agent http://h: weights run-r.a1@v2 cannot be rebuilt") as refused:
        await HttpAgent("http://h", SECRET, transport).bring(wanted)
    assert not refused.value.retryable
    with pytest.raises(WorkerError, match="start it on the engine's host") as refused:
        await HttpAgent(f"http://127.0.0.1:{free_port()}", SECRET).bring(wanted)
    assert refused.value.retryable
    assert not (keeper.cache / local.MARKER).exists()


class Idle(ScriptedEngine):
    """Takes the version and leaves the weights as they were."""

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        self.weight_version = version


@pytest.mark.parametrize("remote", [False, True])
async def test_an_update_that_silently_does_nothing_is_caught(chain: Chain, tmp_path: Path, remote: bool) -> None:
    engine = Idle(model_path=str(chain.file(1, WEIGHTS).parent))
    transfer = DeltaTransfer([("a", engine)], chain.store, tmp_path / "here")
    if remote:
        app = make_app(CheckpointKeeper(chain.store, tmp_path / "there"), SECRET)
        transfer._agents = {"a": HttpAgent("http://h", SECRET, httpx.ASGITransport(app))}
    wanted = chain.versions[2]
    item = AdapterInstall(name=wanted.name, uri=wanted.uri, sha256=wanted.sha256, version=2)
    with pytest.raises(WorkerError, match="its weights did not change"):
        await transfer.install([item], [])
