"""A host's checkpoint: led to the wanted version, or left as it was with a reason."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta import local
from gpu_workers.weights.delta.chain import Link, find_ways, store_reader
from gpu_workers.weights.delta.errors import BadLink, DeltaError, NoSpace, WrongModel
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.manifest import DELTA, MANIFEST
from tests.unit.gpu_workers.weights.delta.chains import Chain, check_whole, make_chain, save_model, served, weights
from tests.unit.gpu_workers.weights.delta.workers import Workers


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Versions 1 to 6; 1 and 5 are whole too."""
    return make_chain(tmp_path, 1, 2, 3, 4, 5, 6, snapshot_every=4)


@pytest.fixture
def keeper(chain: Chain, tmp_path: Path) -> CheckpointKeeper:
    return CheckpointKeeper(chain.store, tmp_path / "cache")


def refuse(keeper: CheckpointKeeper, wanted: Wanted, match: str, kind: type[DeltaError] = BadLink) -> None:
    """Refused for the reason, and what is served stays what it was."""
    before = served(keeper)
    with pytest.raises(kind, match=match):
        keeper.bring(wanted)
    assert served(keeper) == before
    assert not list(keeper.cache.glob("versions/.building-*"))


# -- ways


def test_every_version_forward_is_one_delta(chain: Chain, keeper: CheckpointKeeper) -> None:
    for version, wanted in chain.versions.items():
        held = keeper.bring(wanted)
        check_whole(held, chain.digests[version])
        assert held.from_snapshot == (version == 1)
        if version > 1:
            assert held.num_bytes == chain.file(version, DELTA).stat().st_size
            assert held.density is not None and 0.005 < held.density < 0.05
        else:
            assert (held.num_bytes, held.density) == (chain.file(1, WEIGHTS).stat().st_size, 1.0)


@pytest.mark.parametrize(
    ("have", "want", "snapshot", "deltas"),
    [
        (0, 1, 1, []),
        (0, 4, 1, [2, 3, 4]),
        (0, 6, 5, [6]),
        (2, 4, None, [3, 4]),
        (1, 6, None, [2, 3, 4, 5, 6]),  # five deltas are less than a whole model
        (6, 4, 1, [2, 3, 4]),  # back: the newest snapshot at or before it, and forward
        (6, 5, 5, []),
    ],
)
def test_the_way_with_least_to_move(
    chain: Chain, have: int, want: int, snapshot: int | None, deltas: list[int]
) -> None:
    read = store_reader(chain.store)
    digest = read(chain.key(have)).result_digest if have else ""
    ways, _ = find_ways(Link(chain.key(want), read(chain.key(want))), digest, read)
    best = ways[0]
    assert (best.snapshot.manifest.version if best.snapshot else None) == snapshot
    assert [link.manifest.version for link in best.links] == deltas
    assert best.num_bytes == sum(chain.file(v, DELTA).stat().st_size for v in deltas) + (
        chain.file(snapshot, WEIGHTS).stat().st_size if snapshot else 0
    )


def test_backwards_and_to_another_attempt(chain: Chain, keeper: CheckpointKeeper, tmp_path: Path) -> None:
    """A resumed trainer starts from version 3 and goes another way."""
    check_whole(keeper.bring(chain.versions[6]), chain.digests[6])
    check_whole(keeper.bring(chain.versions[4]), chain.digests[4])
    second = Chain(tmp_path, chain.store, attempt=2, seed=9)
    for version in (4, 5):
        second.publish(version)
        held = keeper.bring(second.versions[version])
        check_whole(held, second.digests[version])
        assert held.from_snapshot == (version == 4)


def test_equal_bytes_under_a_new_name_move_nothing(tmp_path: Path) -> None:
    """A step that was refused for NaN publishes the weights of the version before."""
    chain = make_chain(tmp_path, 1)
    chain.publish(2, weights(0, steps=1))
    keeper = CheckpointKeeper(chain.store, tmp_path / "cache")
    first, second = keeper.bring(chain.versions[1]), keeper.bring(chain.versions[2])
    assert (second.path, second.num_bytes, second.density) == (first.path, 0, None)
    marker = keeper.current()
    assert marker is not None and marker.name == chain.versions[2].name


def test_the_same_again_is_read_in_full(chain: Chain, keeper: CheckpointKeeper) -> None:
    held = keeper.bring(chain.versions[2])
    again = keeper.bring(chain.versions[2])
    assert (again.path, again.num_bytes) == (held.path, 0)
    flip(Path(held.path) / WEIGHTS, -1)
    mended = keeper.bring(chain.versions[2])
    assert mended.from_snapshot
    check_whole(mended, chain.digests[2])


def test_a_form_that_changes_and_files_beside_the_weights(tmp_path: Path) -> None:
    chain = make_chain(tmp_path, 1, 2)
    tensors = weights(0, steps=2)
    tensors["layer.weight"], tensors["new"] = torch.zeros(3, 5), torch.ones(4, dtype=torch.int8)
    del tensors["norm"]
    folder = save_model(tmp_path / "third", tensors)
    (folder / "config.json").write_text('{"model_type": "small", "layers": 3}\n')
    chain.publish_folder(folder, 3)
    chain.publish(4, tensors | {"new": torch.zeros(4, dtype=torch.int8)})
    keeper = CheckpointKeeper(chain.store, tmp_path / "cache")
    keeper.bring(chain.versions[2])
    held = keeper.bring(chain.versions[3])
    assert "layers" in (Path(held.path) / "config.json").read_text()
    assert not chain.file(3, "tokenizer.json").exists()
    check_whole(keeper.bring(chain.versions[4]), chain.digests[4])


def test_disk_is_bounded(chain: Chain, keeper: CheckpointKeeper) -> None:
    for wanted in chain.versions.values():
        keeper.bring(wanted)
        assert len(list(keeper.cache.glob("versions/*"))) <= 2, "the served copy and the one before"


def test_a_store_elsewhere(chain: Chain, tmp_path: Path) -> None:
    """Not a folder of this machine: files are fetched, and nothing fetched is left."""
    remote = ObjectStore(f"memory://{tmp_path.name}")
    for version in chain.versions:
        remote.put_folder(chain.key(version), Path(chain.store.path(chain.key(version))))
    keeper = CheckpointKeeper(remote, tmp_path / "far")
    for version in (2, 3, 6):
        held = keeper.bring(chain.versions[version])
        check_whole(held, chain.digests[version])
        assert {path.name for path in Path(held.path).iterdir()} == {
            WEIGHTS, MANIFEST, "config.json", "tokenizer.json"
        }  # fmt: skip
    remote.fs.rm(remote.path(f"{chain.key(5)}/{DELTA}"))
    keeper = CheckpointKeeper(remote, tmp_path / "farther")
    keeper.bring(chain.versions[4])
    assert keeper.bring(chain.versions[6]).from_snapshot, "around the delta that is missing"


# -- bad input


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["flipped", "cut short", "empty", "gone"])
def test_a_damaged_delta_is_refused_until_a_snapshot_leads_around_it(
    chain: Chain, keeper: CheckpointKeeper, what: str
) -> None:
    keeper.bring(chain.versions[2])
    path = chain.file(3, DELTA)
    if what == "flipped":
        flip(path, -1)
    elif what == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-5] if what == "cut short" else b"")
    refuse(keeper, chain.versions[3], "missing" if what == "gone" else "digest")
    refuse(keeper, chain.versions[4], "missing" if what == "gone" else "digest")
    held = keeper.bring(chain.versions[6])
    assert held.from_snapshot
    check_whole(held, chain.digests[6])


def test_a_gap_in_the_chain(chain: Chain, keeper: CheckpointKeeper) -> None:
    keeper.bring(chain.versions[2])
    shutil.rmtree(chain.file(3, DELTA).parent)
    refuse(keeper, chain.versions[4], "gap in the chain: object runs/r/a1/v000003/model/manifest.json is missing")
    assert keeper.bring(chain.versions[6]).from_snapshot


def test_a_delta_made_against_another_base(chain: Chain, keeper: CheckpointKeeper) -> None:
    """Version 3 as published is not the one that 4 was made against."""
    keeper.bring(chain.versions[2])
    other = make_chain(keeper.cache.parent / "other", 1, 2, 3, seed=5)
    shutil.copyfile(other.file(3, MANIFEST), chain.file(3, MANIFEST))
    refuse(keeper, chain.versions[4], "v3 is not what run-r.a1@v4 was made against")


def test_a_wrong_base_here(chain: Chain, keeper: CheckpointKeeper) -> None:
    """The copy on this host was changed behind our back, and says what it said."""
    held = keeper.bring(chain.versions[2])
    flip(Path(held.path) / WEIGHTS, -1)
    mended = keeper.bring(chain.versions[3])
    assert mended.from_snapshot
    check_whole(mended, chain.digests[3])


def test_a_damaged_snapshot_and_no_way_around_it(chain: Chain, keeper: CheckpointKeeper) -> None:
    flip(chain.file(1, WEIGHTS), -1)
    refuse(keeper, chain.versions[4], "tensor .* of run-r.a1@v1 is damaged")
    flip(chain.file(1, WEIGHTS), -1)
    chain.file(1, "config.json").unlink()
    refuse(keeper, chain.versions[4], "config.json is missing")


def test_a_damaged_snapshot_leads_to_the_one_before(chain: Chain, keeper: CheckpointKeeper) -> None:
    path = chain.file(5, WEIGHTS)
    path.write_bytes(path.read_bytes()[:-8])
    held = keeper.bring(chain.versions[6])
    check_whole(held, chain.digests[6])
    assert held.num_bytes > chain.file(1, WEIGHTS).stat().st_size, "from version 1 over five deltas"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"result_digest": "0" * 64}, "do not add up"),
        ({"format": 2}, "format 2 is not 1"),
        ({"format": None}, "published without deltas"),
        ({"num_bytes": "many"}, "cannot be read"),
        ({"stored": ["../../../x"]}, "no plain file name"),
        ({"files": {"a/b": "0"}}, "no plain file name"),
        ({"files": {"model.safetensors": "0"}}, "no file beside the weights"),
        ({"files": {"manifest.json": "0"}}, "no file beside the weights"),
        ({"delta__compression": "lzma"}, "compression 'lzma' is not known"),
        ({"delta__sha256": "0" * 64}, "digest"),
        ({"delta__base_digest": "0" * 64}, "not what run-r.a1@v3 was made against"),
        ({"delta__base_uri": "../out"}, "bad object key"),
        ({"header_checksum": "0" * 32}, "the header of run-r.a1@v3 is not what its manifest says"),
        ({"delta__changed": {}}, "does not add up"),
    ],
)
def test_a_manifest_that_lies(chain: Chain, keeper: CheckpointKeeper, changes: dict[str, object], match: str) -> None:
    keeper.bring(chain.versions[1])
    chain.edit_manifest(3, **changes)
    refuse(keeper, chain.versions[3], match)


def test_a_checksum_that_a_delta_does_not_give(chain: Chain, keeper: CheckpointKeeper) -> None:
    """The delta file is whole, and of another version."""
    keeper.bring(chain.versions[2])
    shutil.copyfile(chain.file(4, DELTA), chain.file(3, DELTA))
    told = store_reader(chain.store)(chain.key(4)).delta
    assert told is not None
    counts = {name: tensor.num_changed for name, tensor in told.changed.items()}
    chain.edit_manifest(3, delta__sha256=told.sha256)
    for name, count in counts.items():
        chain.edit_manifest(3, **{f"delta__changed__{name}__num_changed": count})
    refuse(keeper, chain.versions[3], "gives another tensor|cannot be unfolded|unfolds to")


def test_of_another_model_or_not_what_was_asked_for(chain: Chain, keeper: CheckpointKeeper) -> None:
    wanted = chain.versions[2]
    keeper.bring(wanted)
    foreign = Wanted(name="n", uri=wanted.uri, sha256=wanted.sha256, base_fingerprint="e" * 64)
    refuse(keeper, foreign, "another base model", WrongModel)
    third = chain.versions[3]
    mixed = Wanted(name=third.name, uri=wanted.uri, sha256=third.sha256)
    refuse(keeper, mixed, "holds digest .* expected", WrongModel)
    refuse(keeper, Wanted(name="n", uri="runs/none", sha256="0"), "missing")


@pytest.mark.parametrize("spoil", ["marker", "folder", "manifest", "weights"])
def test_a_spoilt_cache_is_filled_again(chain: Chain, keeper: CheckpointKeeper, spoil: str) -> None:
    held = keeper.bring(chain.versions[2])
    folder = Path(held.path)
    if spoil == "marker":
        (keeper.cache / local.MARKER).write_text("{")
    elif spoil == "folder":
        shutil.rmtree(folder)
    else:
        (folder / (MANIFEST if spoil == "manifest" else WEIGHTS)).write_bytes(b"")
    mended = keeper.bring(chain.versions[3])
    assert mended.from_snapshot
    check_whole(mended, chain.digests[3])


# -- disk


def test_a_disk_that_fills_up_half_way(chain: Chain, keeper: CheckpointKeeper, workers: Workers) -> None:
    """In a process of its own, whose files cannot grow beyond a limit."""
    keeper.bring(chain.versions[2])
    size = chain.file(1, WEIGHTS).stat().st_size
    for limit in (100, size // 2, size - 1):
        ending = workers.bring(chain.store, keeper.cache, chain.versions[3], file_bytes=limit)
        assert "NoSpace" in ending.error and "no room for another copy" in ending.error
        assert served(keeper) == chain.digests[2]
        assert len(list(keeper.cache.glob("versions/*"))) == 1, "what was half written is gone"
    check_whole(keeper.bring(chain.versions[3]), chain.digests[3])


def test_a_disk_without_room_is_refused_before_anything_is_written(
    chain: Chain, keeper: CheckpointKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.bring(chain.versions[2])
    usage = shutil.disk_usage(keeper.cache)
    monkeypatch.setattr(local.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refuse(keeper, chain.versions[3], "another copy of the model needs", NoSpace)
    monkeypatch.undo()
    check_whole(keeper.bring(chain.versions[3]), chain.digests[3])


@pytest.fixture
def locked_folder(keeper: CheckpointKeeper) -> Iterator[Path]:
    folder = keeper.cache / "versions"
    folder.mkdir(parents=True)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    yield folder
    folder.chmod(stat.S_IRWXU)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(chain: Chain, keeper: CheckpointKeeper, locked_folder: Path) -> None:
    with pytest.raises(PermissionError):
        keeper.bring(chain.versions[1])


def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path, workers: Workers) -> None:
    """Models of 96 MiB in tensors of 2, published and rebuilt by processes that may allocate 32 MiB."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"t{index}": torch.randn(1 << 19, generator=generator) for index in range(48)}
    folders = {1: save_model(tmp_path / "1", tensors)}
    for tensor in tensors.values():
        tensor[::1000] += 1
    folders[2] = save_model(tmp_path / "2", tensors)
    digests = {version: file_sha256(folder / WEIGHTS) for version, folder in folders.items()}
    store, limit = ObjectStore(f"file://{tmp_path / 'store'}"), 32 << 20
    ending = workers.publish(store, tmp_path / "work", 1, folders, memory_bytes=limit)
    assert (ending.killed, ending.error) == (False, "")
    for version, digest in digests.items():
        wanted = Wanted(name=f"run-r.a1@v{version}", uri=f"runs/r/a1/v{version:06d}/model", sha256=digest)
        ending = workers.bring(store, tmp_path / "cache", wanted, memory_bytes=limit)
        assert (ending.killed, ending.error) == (False, "")
    assert served(CheckpointKeeper(store, tmp_path / "cache")) == digests[2]
