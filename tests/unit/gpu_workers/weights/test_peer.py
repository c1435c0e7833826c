"""Peers that go away, freeze or send other bytes: nothing of theirs is used, what was served stays served."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.agent.app import make_app
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.ordered import OrderedProcess
from gpu_workers.weights.peer import keeping
from gpu_workers.weights.peer.agents import HttpPullingAgent
from gpu_workers.weights.peer.keeping import PeerError, PeerKeeper
from gpu_workers.weights.peer.library import LibraryError, start_engine
from gpu_workers.weights.peer.messages import Offer, OfferedFile, PullRequest
from gpu_workers.weights.peer.transfer import PeerTransfer
from tests.support.transfers import Case, changed

HERE = "127.0.0.1"
OFFERING = "gpu_workers.weights.peer.offering"
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("mooncake") is None, reason="requirements-peer.txt is not installed"
)


@pytest.fixture
def offering() -> Iterator[OrderedProcess]:
    process = OrderedProcess(OFFERING)
    yield process
    if process.alive:
        os.kill(process.pid, signal.SIGCONT)
    process.kill()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PART_BYTES", 1 << 18)  # several of the tiny model


def offer(process: OrderedProcess, folder: Path) -> Offer:
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file() and path.name != "manifest.json"]
    answer = process.ask({"do": "offer", "folder": str(folder), "names": names, "address": HERE}, 120)
    assert answer["ok"], answer
    return msgspec.convert(answer["offer"], Offer)


def commit(offered: Offer, *, version: int = 1, stall_seconds: float = 30.0) -> PullRequest:
    sha256 = next(file.sha256 for file in offered.files if file.name == WEIGHTS)
    wanted = Wanted(name=f"run-x.a1@v{version}", uri="nowhere", sha256=sha256)
    return PullRequest(wanted=wanted, offer=offered, stall_seconds=stall_seconds)


def at_second_part(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[dict[str, Any]]:
    """`act` once the first part of the weights is here."""
    ask, parts = OrderedProcess.ask, list[dict[str, Any]]()

    def wrapped(process: OrderedProcess, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        if order["do"] == "pull" and order["file"].endswith(WEIGHTS):
            parts.append(order)
            if len(parts) == 2:
                act()
        return ask(process, order, seconds)

    monkeypatch.setattr(OrderedProcess, "ask", wrapped)
    return parts


@needs_library
def test_a_version_comes_whole_and_is_not_pulled_twice(
    tiny_model: Path, tmp_path: Path, offering: OrderedProcess
) -> None:
    keeper = PeerKeeper(tmp_path / "cache")
    request = commit(offer(offering, changed(tiny_model, tmp_path / "1")))
    answer = keeper.pull(request)
    for file in request.offer.files:
        assert (Path(answer.path) / file.name).read_bytes() == (tmp_path / "1" / file.name).read_bytes()
    assert answer.num_bytes == request.offer.num_bytes > 1 << 20
    again = keeper.pull(request)
    assert (again.path, again.num_bytes) == (answer.path, 0)
    (Path(answer.path) / WEIGHTS).write_bytes(b"damaged here")
    mended = keeper.pull(request)
    assert mended.num_bytes > 0 and file_sha256(Path(mended.path) / WEIGHTS) == request.wanted.sha256


@needs_library
@pytest.mark.parametrize(
    ("number", "match"), [(signal.SIGKILL, "broke off"), (signal.SIGSTOP, "did not pull within 2 s")]
)
def test_a_peer_that_goes_away_in_the_middle(
    tiny_model: Path, tmp_path: Path, offering: OrderedProcess, monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals, match: str,
) -> None:  # fmt: skip
    """A frozen one is given up long before Mooncake does."""
    keeper = PeerKeeper(tmp_path / "cache")
    first = keeper.pull(commit(offer(offering, changed(tiny_model, tmp_path / "1"))))
    second = commit(offer(offering, changed(tiny_model, tmp_path / "2", seed=2)), version=2, stall_seconds=2.0)
    parts = at_second_part(monkeypatch, lambda: os.kill(offering.pid, number))
    with pytest.raises(PeerError, match=match):
        keeper.pull(second)
    assert len(parts) == 2, "it was in the middle"
    marker = keeper.local.marker()
    assert marker is not None and str(keeper.local.folder(marker)) == first.path
    assert [path.name for path in (tmp_path / "cache" / "versions").iterdir()] == [Path(first.path).name]
    assert (Path(first.path) / WEIGHTS).read_bytes() == (tmp_path / "1" / WEIGHTS).read_bytes()


@needs_library
def test_bytes_that_are_not_those_of_the_commit_are_refused(
    tiny_model: Path, tmp_path: Path, offering: OrderedProcess
) -> None:
    """All of them arrive, without an error; the checksums decide."""
    keeper = PeerKeeper(tmp_path / "cache")
    true = offer(offering, changed(tiny_model, tmp_path / "1"))
    torn = tmp_path / "torn"
    changed(tiny_model, torn)
    data = bytearray((torn / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (torn / WEIGHTS).write_bytes(data)
    sent = {file.name: file for file in offer(offering, torn).files}
    files = [msgspec.structs.replace(sent[file.name], sha256=file.sha256) for file in true.files]
    with pytest.raises(PeerError, match="torn or changed"):
        keeper.pull(commit(msgspec.structs.replace(true, files=files)))
    assert keeper.local.marker() is None


@needs_library
def test_an_offer_that_was_withdrawn_cannot_be_pulled(
    tiny_model: Path, tmp_path: Path, offering: OrderedProcess
) -> None:
    request = commit(offer(offering, changed(tiny_model, tmp_path / "1")))
    assert offering.ask({"do": "withdraw"}, 30)["ok"]
    with pytest.raises(PeerError, match="broke off"):
        PeerKeeper(tmp_path / "cache").pull(request)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["../outside", WEIGHTS], "no model folder has"),
        ([".hidden", WEIGHTS], "no model folder has"),
        (["manifest.json", WEIGHTS], "no model folder has"),
        ([WEIGHTS, WEIGHTS], "no model folder has"),
        (["config.json"], "not what was asked for"),
    ],
)
def test_an_offer_that_is_no_model_folder_is_refused_before_anything_is_pulled(
    tmp_path: Path, names: list[str], match: str
) -> None:
    files = [OfferedFile(name=name, address=1, num_bytes=8, sha256="a" * 64) for name in names]
    wanted = Wanted(name="run-x.a1@v1", uri="nowhere", sha256="a" * 64)
    with pytest.raises(PeerError, match=match):
        PeerKeeper(tmp_path).pull(PullRequest(wanted=wanted, offer=Offer(session=f"{HERE}:1", files=files)))


def test_a_host_without_the_library_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake", None)
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(LibraryError, match=r"requirements-peer\.txt.*libibverbs1"):
        start_engine(HERE)


@needs_library
async def test_an_agent_pulls_for_the_engine_on_its_host(
    tiny_model: Path, tmp_path: Path, offering: OrderedProcess
) -> None:
    keeper = PeerKeeper(tmp_path / "cache" / "peer")
    app = make_app(CheckpointKeeper(ObjectStore(f"file://{tmp_path}"), tmp_path / "cache"), "s" * 32, keeper)
    transport = httpx.ASGITransport(app)
    request = commit(offer(offering, changed(tiny_model, tmp_path / "1")))
    with pytest.raises(InstallError, match="ROLLOUT_AGENT_SECRET"):
        await HttpPullingAgent("http://agent", "wrong", transport).pull(request)
    answer = await HttpPullingAgent("http://agent", "s" * 32, transport).pull(request)
    assert file_sha256(Path(answer.path) / WEIGHTS) == request.wanted.sha256
    offering.kill()
    with pytest.raises(InstallError, match="broke off") as gone:
        await HttpPullingAgent("http://agent", "s" * 32, transport).pull(
            msgspec.structs.replace(request, wanted=msgspec.structs.replace(request.wanted, name="run-x.a1@v2"))
        )
    assert gone.value.retryable


async def test_an_agent_without_a_puller_says_so(tmp_path: Path) -> None:
    app = make_app(CheckpointKeeper(ObjectStore(f"file://{tmp_path}"), tmp_path), "s" * 32)
    files = [OfferedFile(name=WEIGHTS, address=1, num_bytes=8, sha256="a" * 64)]
    request = commit(Offer(session=f"{HERE}:1", files=files))
    with pytest.raises(InstallError, match="pulls from no peers"):
        await HttpPullingAgent("http://agent", "s" * 32, httpx.ASGITransport(app)).pull(request)


class _DiesOnceItHasOffered(OrderedProcess):
    def __init__(self) -> None:
        super().__init__(OFFERING)

    async def order(self, order: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        answer = await super().order(order, seconds=seconds)
        self.kill()
        return answer


@needs_library
async def test_engines_go_on_undisturbed_when_the_sender_dies(tiny_model: Path, tmp_path: Path) -> None:
    store = ObjectStore(f"file://{tmp_path / 'store'}")
    engine = ScriptedEngine(model_path=str(tiny_model))
    transfer = PeerTransfer([("a", engine)], store, tmp_path / "cache", offering=_DiesOnceItHasOffered)

    async def held() -> list[set[str]]:
        return [{engine.weight_version}]

    item = Case(transfer, store, [engine], tiny_model, held, full=True).publish(tmp_path / "1", 1)
    with pytest.raises(InstallError, match="broke off") as gone:
        await transfer.install([item], [])
    assert gone.value.retryable
    assert (engine.weight_version, engine.num_updates) == ("default", 0)
    result = await engine.generate(GenerateRequest((1, 20), Sampling(max_new_tokens=2)))
    assert [span.version for span in result.spans] == ["default"]
    report = await PeerTransfer([("a", engine)], store, tmp_path / "cache").install([item], [])
    assert report.installed == [item.name] and engine.weight_version == item.name
