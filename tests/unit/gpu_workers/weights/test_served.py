"""Whether an engine has a version's bytes already: one rule, whichever transfer asks, on whichever host."""

import json
from pathlib import Path

import pytest

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights import course, served
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.base import published_base
from gpu_workers.weights.delta.transfer import DeltaTransfer
from gpu_workers.weights.full import FullTransfer
from gpu_workers.weights.in_place import InPlaceTransfer
from gpu_workers.weights.served import Serving, same_bytes_in
from tests.support.members import Member
from tests.support.transfers import Case
from tests.unit.gpu_workers.weights.test_broadcast import World


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_confirmed", {})
    monkeypatch.setattr(course, "GRACE_SECONDS", 0.05)


def folder_of(path: Path, manifest: object = None) -> tuple[str, str]:
    path.mkdir()
    (path / WEIGHTS).write_bytes(b"weights")
    if manifest is not None:
        (path / "manifest.json").write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    return str(path), file_sha256(path / WEIGHTS)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("default", True),
        ("run-1.a1@v3", None),
        ("policy-0123", None),
        ("mixture of default and run-1.a1@v3", None),
    ],
)
def test_a_bare_folder_tells_of_what_an_engine_was_started_with(
    tmp_path: Path, version: str, told: bool | None
) -> None:
    path, sha256 = folder_of(tmp_path / "f")
    assert same_bytes_in(Serving(path, version), sha256) is told
    assert same_bytes_in(Serving(path, version), "0" * 64) is (None if told is None else False)


def test_a_published_folder_tells_of_the_version_it_was_published_as(tmp_path: Path) -> None:
    path, _ = folder_of(tmp_path / "f", {"name": "run-1.a1@v3", "sha256": "aa", "version": 3})
    assert same_bytes_in(Serving(path, "run-1.a1@v3"), "aa") is True
    assert same_bytes_in(Serving(path, "run-1.a1@v3"), "bb") is False
    assert same_bytes_in(Serving(path, "default"), "aa") is True, "an engine that was started with it"
    assert same_bytes_in(Serving(path, "run-1.a1@v4"), "aa") is None, "v4 came over a network"


@pytest.mark.parametrize("manifest", ["{", "[]", '"x"', {"sha256": 3}])
def test_a_manifest_that_cannot_be_read_tells_nothing(tmp_path: Path, manifest: object) -> None:
    path, sha256 = folder_of(tmp_path / "f", manifest)
    assert same_bytes_in(Serving(path, "default"), sha256) is None


def test_a_folder_that_is_not_here_tells_nothing(tmp_path: Path) -> None:
    assert same_bytes_in(Serving(str(tmp_path / "none"), "default"), "aa") is None


@pytest.mark.parametrize("kind", [FullTransfer, DeltaTransfer])
async def test_the_base_comes_back_after_a_broadcast(
    kind: type[InPlaceTransfer], tiny_model: Path, tmp_path: Path
) -> None:
    """The engine was started with the base's folder and names it still; what it has came over the network."""
    world = World(tiny_model, tmp_path, member := Member())
    await world.transfer.install([world.item], [])
    assert member.model_path == str(tiny_model)
    served._confirmed.clear()  # another worker's
    base = published(world.case, tiny_model, tmp_path / "base")
    report = await kind(list(world.members.items()), world.case.store, tmp_path / "c2").install([base], [])
    assert report.installed == [base.name] and member.weight_version == base.name


async def test_bytes_that_an_engine_has_from_a_broadcast_are_no_failed_update(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, member := Frozen())
    member.digest = "before"
    original = member.end_update

    async def end_update() -> None:
        await original()
        member.digest = "after"

    member.end_update = end_update  # type: ignore[method-assign]
    await world.transfer.install([world.item], [])
    again = AdapterInstall(name="run-2.a0@v0", uri=world.item.uri, sha256=world.item.sha256)
    report = await FullTransfer([("a", member)], world.case.store, tmp_path / "c2").install([again], [])
    assert report.installed == [again.name] and member.weight_version == again.name


class Frozen(Member):
    """Its weights are whatever `digest` says."""

    digest = ""

    async def weights_digest(self) -> str:
        return self.digest


def published(case: Case, model: Path, folder: Path) -> AdapterInstall:
    item = AdapterInstall(name="run-2.a0@v0", uri="", sha256="")
    return published_base(case.store, model, folder, item)


class Idle(Member):
    """Takes the version and leaves the weights as they were."""

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        self.weight_version = version


async def test_an_update_that_does_nothing_does_not_pass_when_it_is_asked_for_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    case, engine = full_case(Idle(), tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    for _ in range(2):
        with pytest.raises(InstallError, match="its weights did not change"):
            await case.transfer.install([item], [])
        assert engine.weight_version == "default", "what it has has its own name"
        assert engine.calls[-1] == "resume"


async def test_weights_that_could_not_be_confirmed_are_accepted_by_no_request(tiny_model: Path, tmp_path: Path) -> None:
    class Misnaming(Member):
        async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
            await super().update_weights(path, self.weight_version, flush_cache=flush_cache)

    case, engine = full_case(Misnaming(), tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    with pytest.raises(InstallError, match="says it has 'default'"):
        await case.transfer.install([item], [])
    assert engine.weight_version == f"unconfirmed {item.name}"


async def test_an_engine_that_a_dead_worker_left_paused_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    """Killed between taking and continuing: the engine says that it has the version, and samples nothing."""
    case, engine = full_case(Member(), tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    await engine.pause("retract")
    await engine.update_weights(case.store.path(item.uri), item.name)
    report = await case.transfer.install([item], [])
    assert report.installed == [item.name] and report.pause_seconds is not None
    assert engine.calls[-1] == "resume" and engine.num_updates == 1
    assert (await case.transfer.install([item], [])).pause_seconds is None, "now it is known"


async def test_a_member_that_a_dead_worker_left_paused_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path, member := Member())
    await member.pause("retract")
    member.weight_version = world.item.name
    await world.transfer.install([world.item], [])
    assert member.calls[-1] == "resume" and "begin" not in member.calls


def full_case(engine: Member, model: Path, folder: Path) -> tuple[Case, Member]:
    store = ObjectStore(f"file://{folder / 'store'}")
    engine.model_path = str(model)

    async def held() -> list[set[str]]:
        return [{engine.weight_version}]

    return Case(FullTransfer([("a", engine)], store, folder / "cache"), store, [engine], model, held, full=True), engine
