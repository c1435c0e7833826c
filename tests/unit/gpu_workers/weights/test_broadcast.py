"""Broadcasts that break off: what every engine has then is known and said, and none serves a mixture."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from gpu_workers.contracts.messages import AdapterInstall, FleetJob, Sampling
from gpu_workers.contracts.seams import Bucket, GenerateRequest
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.transfers import Transfer
from gpu_workers.engines.fleet import EngineFleet
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights import course
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.broadcast import BroadcastTransfer
from gpu_workers.weights.buckets import open_file, plan_buckets
from gpu_workers.weights.fleet import install_on_fleet
from gpu_workers.weights.sender import close_kept, take_sender
from tests.support.engine_process import engine_process
from tests.support.members import Member, NoSender, Silent
from tests.support.transfers import Case
from tests.unit.gpu_workers.engines.serving import serving

BUCKET = 1 << 19  # four of the tiny model


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "GRACE_SECONDS", 0.05)


class World:
    """Scripted members a, b, … and one published version."""

    def __init__(self, model: Path, folder: Path, *members: Member, sender: NoSender | None = None) -> None:
        self.members = dict(zip("abc", members, strict=False))
        for member in members:
            member.model_path = str(model)
        self.sender = sender or NoSender()
        store = ObjectStore(f"file://{folder / 'store'}")
        self.transfer = BroadcastTransfer(
            list(self.members.items()), store, folder / "cache", base=model, address="127.0.0.1",
            bucket_bytes=BUCKET, sender=lambda: self.sender,
        )  # fmt: skip
        self.case = Case(self.transfer, store, [], model, self.held, full=True)
        self.item = self.case.publish(folder / "1", 1)

    async def held(self) -> list[set[str]]:
        return [{member.weight_version} for member in self.members.values()]

    async def refused(self, match: str) -> InstallError:
        with pytest.raises(InstallError, match=match) as error:
            await asyncio.wait_for(self.transfer.install([self.item], []), 60)
        return error.value


async def test_all_engines_take_every_tensor_once_and_the_version_last(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, Member(), Member(swaps=True))
    report = await world.transfer.install([world.item], [])
    names = open_file(tiny_model / WEIGHTS).spans.keys()
    before = {"a": ["pause", "version", "begin", "receive"], "b": ["begin", "receive", "pause", "version"]}
    for url, member in world.members.items():
        assert sorted(member.taken) == sorted(names)
        assert member.weight_version == world.item.name
        assert [*dict.fromkeys(member.calls)] == ["join", *before[url], "end", "resume", "leave"]
        assert member.versions == [f"mixture of default and {world.item.name}", world.item.name]
    assert sorted(world.sender.sent) == sorted(names) and not world.sender.killed
    assert report.ok and not report.message
    assert report.num_bytes == sum(span.num_bytes for span in open_file(tiny_model / WEIGHTS).spans.values())
    assert report.pause_seconds is not None and 0 < report.pause_seconds <= report.duration_seconds


async def test_an_engine_that_breaks_off_keeps_its_old_weights_where_they_are_whole(
    tiny_model: Path, tmp_path: Path
) -> None:
    world = World(tiny_model, tmp_path, Member(swaps=True, fails_at=2))
    error = await world.refused("engine a keeps its old weights")
    assert error.retryable
    member = world.members["a"]
    assert member.weight_version == "default" and not member.taken
    assert member.calls[-3:] == ["begin", "end", "leave"] and "pause" not in member.calls, "what came is discarded"
    assert world.sender.killed


async def test_an_engine_with_a_mixture_reads_the_new_weights_from_disk(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, Member(fails_at=2), Member())
    report = await world.transfer.install([world.item], [])
    assert report.ok and "engine a read weights" in report.message and "Failed to receive" in report.message
    assert [member.weight_version for member in world.members.values()] == [world.item.name] * 2
    assert ("disk" in world.members["a"].calls, "disk" in world.members["b"].calls) == (True, False)
    assert world.sender.killed, "it is in the middle of a bucket"


async def test_an_engine_with_a_mixture_that_cannot_be_repaired_stays_paused(tiny_model: Path, tmp_path: Path) -> None:
    bad = Member(fails_at=2)
    bad.readable = False
    world = World(tiny_model, tmp_path, bad, Member())
    await world.refused("engine a holds a mixture that cannot be repaired.*stays paused")
    assert "resume" not in bad.calls and bad.weight_version.startswith("mixture of default and")
    assert world.members["b"].weight_version == world.item.name, "the other had all of it"


async def test_an_engine_that_does_not_say_what_it_has_stays_paused(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, bad := Member(fails_at=1))
    original = bad.receive

    async def receive(bucket: Bucket, group: str, *, seconds: float) -> None:
        if bad.calls.count("receive") == 1:
            bad.breaks = ("digest",)
        await original(bucket, group, seconds=seconds)

    bad.receive = receive  # type: ignore[method-assign]
    await world.refused("does not say which weights it has.*left paused")
    assert "resume" not in bad.calls


async def test_tensors_that_change_nothing_are_noticed_before_the_version_is_set(
    tiny_model: Path, tmp_path: Path
) -> None:
    world = World(tiny_model, tmp_path, Silent())
    await world.refused("its weights did not change")
    member = world.members["a"]
    assert member.versions[1:] == ["default"]
    assert "resume" in member.calls, "it goes on under what it has"


async def test_a_version_that_is_not_taken_leaves_the_engine_paused(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, member := Member())
    original = member.end_update

    async def end_update() -> None:
        await original()
        member.breaks = ("version",)

    member.end_update = end_update  # type: ignore[method-assign]
    await world.refused("did not take their name.*stays paused")
    assert "resume" not in member.calls and member.weight_version.startswith("mixture")


async def test_a_mixture_stays_paused_until_an_install_succeeds(tiny_model: Path, tmp_path: Path) -> None:
    """Whoever finds it, and however little the next try changes; nobody is answered from it meanwhile."""
    bad = Member(fails_at=2)
    bad.readable = False
    world = World(tiny_model, tmp_path, bad)
    await world.refused("holds a mixture")
    with pytest.raises(EngineError, match="mixture of default"):
        request = GenerateRequest((1, 20), Sampling(max_new_tokens=2), weights=world.item.name)
        await EngineFleet([("a", bad)]).generate(request)
    bad.fails_at = bad.calls.count("receive")
    await world.refused("holds mixture of default and .* since an update broke off: it stays paused")
    assert "resume" not in bad.calls
    bad.fails_at = -1
    report = await world.transfer.install([world.item], [])
    assert report.installed == [world.item.name] and bad.calls[-2:] == ["resume", "leave"]


async def test_a_session_that_a_dead_sender_left_open_is_ended(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, member := Member())
    await member.begin_update()
    await world.transfer.install([world.item], [])
    assert member.weight_version == world.item.name


async def test_what_a_dead_sender_left_in_an_engine_that_swaps_is_discarded(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, member := Member(swaps=True))
    await member.begin_update()
    await member.receive(Bucket(("left",), (), (), 0), "", seconds=1)
    await world.transfer.install([world.item], [])
    assert "left" not in member.taken and member.weight_version == world.item.name


@pytest.mark.parametrize("fails", ["serve", "form"])
async def test_without_a_group_nothing_is_paused(tiny_model: Path, tmp_path: Path, fails: str) -> None:
    world = World(tiny_model, tmp_path, Member(), sender=NoSender(fails=fails))
    await world.refused(f"{fails} fails")
    assert "pause" not in world.members["a"].calls and world.sender.killed


async def test_an_engine_that_does_not_join_pauses_nobody(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, Member(), Member(breaks=("join",)))
    await world.refused("no group of 2 engines could be formed: join fails")
    assert not any("pause" in member.calls for member in world.members.values())
    assert all("leave" in member.calls for member in world.members.values())


async def test_an_engine_that_does_not_pause_has_nothing_sent_to_the_others(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, Member(), Member(breaks=("pause",)))
    await world.refused("pause fails")
    assert not world.sender.sent
    assert world.members["a"].calls.count("receive") == 0 and "resume" in world.members["a"].calls


def _renamed(tensors: dict) -> dict:
    return {name.replace("norm", "nörm"): tensor for name, tensor in tensors.items()}


def _reshaped(tensors: dict) -> dict:
    return tensors | {"model.norm.weight": tensors["model.norm.weight"][:-1].clone()}


def _retyped(tensors: dict) -> dict:
    return {name: tensor.double() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_renamed, "lack .*norm.* and add .*nörm"),
        (_reshaped, r"model.norm.weight as \w+\[127\] instead of \w+\[128\]"),
        (_retyped, r"as float64\[.*instead of"),
    ],
)
async def test_weights_of_another_layout_are_refused_before_anything_is_touched(
    tiny_model: Path, tmp_path: Path, change: Callable[[dict], dict], match: str
) -> None:
    world = World(tiny_model, tmp_path, Member())
    file = Path(world.case.store.path(world.item.uri)) / WEIGHTS
    save_file(change(load_file(file)), file)
    world.item = AdapterInstall(name=world.item.name, uri=world.item.uri, sha256=file_sha256(file), version=1)
    await world.refused(match)
    assert not world.members["a"].calls


def test_buckets_hold_every_tensor_once_within_their_bound(tiny_model: Path) -> None:
    spans = open_file(tiny_model / WEIGHTS).spans
    buckets = plan_buckets(spans, BUCKET)
    assert len(buckets) > 2
    assert sorted(name for bucket in buckets for name in bucket.names) == sorted(spans)
    for bucket in buckets:
        assert bucket.num_bytes <= BUCKET or len(bucket.names) == 1
        assert bucket.num_bytes == sum(spans[name].num_bytes for name in bucket.names)


async def test_an_engine_that_is_killed_between_two_buckets(tiny_model: Path, tmp_path: Path) -> None:
    """Real engines, a real group: the survivor goes on with its old weights, and takes the next broadcast."""
    with serving(tiny_model) as (url, _), engine_process(tiny_model) as doomed:
        transfer, case, engines = _real(tiny_model, tmp_path, [url, doomed.url])
        item = case.publish(tmp_path / "1", 1)
        before = await engines[0].generate(ask())
        _at_second_bucket(engines[1], lambda: doomed.signal(signal.SIGKILL))
        with pytest.raises(InstallError, match=r"engine http://127.0.0.1:.* keeps its old weights") as broken:
            await asyncio.wait_for(transfer.install([item], []), 120)
        assert doomed.url in str(broken.value)
        after = await engines[0].generate(ask())
        assert (after.output_ids, after.spans[0].version) == (before.output_ids, "default")
        alone = BroadcastTransfer(
            [(url, engines[0])], case.store, tmp_path / "cache", base=tiny_model, address="127.0.0.1"
        )
        await alone.install([item], [])
        assert (await engines[0].generate(ask())).spans[0].version == item.name
        for engine in engines:
            await engine.close()
    close_kept()


async def test_an_engine_that_freezes_is_given_up_at_the_deadline(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "RECOVER_SECONDS", 1.0)
    monkeypatch.setattr("gpu_workers.engines.collective.LEAVE_SECONDS", 1.0)
    with engine_process(tiny_model) as frozen:
        transfer, case, engines = _real(tiny_model, tmp_path, [frozen.url])
        item = case.publish(tmp_path / "1", 1)
        _at_second_bucket(engines[0], lambda: frozen.signal(signal.SIGSTOP), then_seconds=2.0)
        installing = asyncio.create_task(transfer.install([item], []))
        with pytest.raises(InstallError, match="keeps its old weights"):
            await asyncio.wait_for(installing, 120)
        frozen.signal(signal.SIGCONT)
        assert (await engines[0].generate(ask())).spans[0].version == "default", "it was never paused"
        transfer, _, again = _real(tiny_model, tmp_path, [frozen.url])
        await transfer.install([item], [])
        assert (await engines[0].generate(ask())).spans[0].version == item.name, "and the next install goes through"
        for engine in (*engines, *again):
            await engine.close()
    close_kept()


async def test_the_fleet_job_of_a_broadcast(tiny_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny").symlink_to(tiny_model)
    with serving(tiny_model) as (url, _):
        _, case, engines = _real(tiny_model, tmp_path, [url])
        item = case.publish(tmp_path / "1", 1)
        job = FleetJob(job_id="j", base_model="tiny", install=[item], transfer=Transfer.AUTO)
        report = await install_on_fleet(job, case.store, home / "models", tmp_path / "c", [url], collective=True)
        assert report.ok, report.message
        info = await engines[0].info()
        assert (info.weight_version, info.model_path) == (item.name, str(tiny_model)), "nothing was read from disk"
        await engines[0].close()
    sender = take_sender()
    assert sender.alive, "it is kept for the next install"
    sender.kill()


def _real(model: Path, folder: Path, urls: list[str]) -> tuple[BroadcastTransfer, Case, list[SGLangEngine]]:
    engines = [SGLangEngine(url) for url in urls]
    store = ObjectStore(f"file://{folder / 'store'}")
    transfer = BroadcastTransfer(
        list(zip(urls, engines, strict=True)), store, folder / "cache", base=model, address="127.0.0.1",
        bucket_bytes=BUCKET,
    )  # fmt: skip

    async def held() -> list[set[str]]:
        return [{(await engine.info()).weight_version} for engine in engines]

    return transfer, Case(transfer, store, [], model, held, full=True), engines


def _at_second_bucket(engine: SGLangEngine, act: Callable[[], None], *, then_seconds: float = 120.0) -> None:
    receive, seen = engine.receive, []

    async def wrapped(bucket: Bucket, group: str, *, seconds: float) -> None:
        seen.append(bucket)
        if len(seen) == 2:
            act()
            seconds = then_seconds
        await receive(bucket, group, seconds=seconds)

    engine.receive = wrapped  # type: ignore[method-assign]


def ask() -> GenerateRequest:
    return GenerateRequest((1, 20, 21), Sampling(max_new_tokens=8, temperature=0.0))
