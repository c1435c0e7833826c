"""Killed anywhere: the old or the new version is served, never a mixture, and the next try succeeds.

Real processes and real SIGKILLs, at named places and at 20 calls spread at random over the work.
"""

import random
import shutil
from pathlib import Path

import pytest

from gpu_workers.models import tiny
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta.apply import verify
from gpu_workers.weights.delta.errors import DeltaError
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.layout import open_weights
from gpu_workers.weights.delta.manifest import read_local
from tests.support.transfers import changed
from tests.unit.gpu_workers.weights.delta.chains import Chain, make_chain
from tests.unit.gpu_workers.weights.delta.work import OF_PUBLISHING, OF_REBUILDING
from tests.unit.gpu_workers.weights.delta.workers import Workers

NUM_POINTS = 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The tiny model as a trainer saves it, version by version."""
    root = tmp_path_factory.mktemp("saved")
    folders = {1: changed(tiny.prepare(root), root / "v1")}
    for version in (2, 3, 4):
        folders[version] = changed(folders[version - 1], root / f"v{version}", seed=version, scale=0.3, share=0.02)
    return folders


@pytest.fixture
def chain(saved: dict[int, Path], tmp_path: Path) -> Chain:
    """Versions 1 to 3 of one attempt."""
    chain = make_chain(tmp_path)
    for version in (1, 2, 3):
        chain.publish_folder(copied(saved[version], tmp_path / f"first-{version}"), version)
    return chain


def copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def digest_served(keeper: CheckpointKeeper) -> str:
    """Of the weights file, after every byte of the folder was compared with its manifest."""
    marker = keeper.current()
    assert marker is not None
    folder = keeper.local.folder(marker)
    verify(open_weights(folder / WEIGHTS), read_local(folder))
    return file_sha256(folder / WEIGHTS)


class Rebuilding:
    """Bring one version in place of another, killed, then again; from the same start each time."""

    def __init__(self, chain: Chain, workers: Workers, old: tuple[Wanted, str], new: tuple[Wanted, str]) -> None:
        self.chain, self.workers, self.old, self.new = chain, workers, old, new
        self.start = chain.root / "start"
        CheckpointKeeper(chain.store, self.start).bring(old[0])
        self.outcomes: set[bool] = set()  # whether the new version was served after a kill

    def kill(self, number: int, **how: object) -> None:
        cache = copied(self.start, self.chain.root / f"cache-{number}")
        keeper = CheckpointKeeper(self.chain.store, cache)
        assert self.workers.bring(self.chain.store, cache, self.new[0], **how).killed, how
        found = digest_served(keeper)
        assert found in (self.old[1], self.new[1]), how
        self.outcomes.add(found == self.new[1])
        again = self.workers.bring(self.chain.store, cache, self.new[0])
        assert (again.killed, again.error) == (False, ""), how
        assert digest_served(keeper) == self.new[1], how
        assert len(list(cache.glob("versions/*"))) <= 2, "what was half done is gone"
        shutil.rmtree(cache)

    def kill_everywhere(self) -> None:
        whole = copied(self.start, self.chain.root / "whole")
        calls = self.workers.bring(self.chain.store, whole, self.new[0]).calls
        assert calls > 100
        points = random.Random(7).sample(range(1, calls + 1), NUM_POINTS)
        for number, point in enumerate(points):
            self.kill(number, kill_at=point)
        for number, barrier in enumerate(OF_REBUILDING, NUM_POINTS):
            self.kill(number, barrier=barrier)
        assert self.outcomes == {False, True}, "kills came before and after the new version was served"


def test_a_host_that_applies_a_delta(chain: Chain, workers: Workers) -> None:
    old, new = ((chain.versions[version], chain.digests[version]) for version in (2, 3))
    Rebuilding(chain, workers, old, new).kill_everywhere()


def test_a_host_that_follows_a_resumed_trainer_back(chain: Chain, workers: Workers, saved: dict[int, Path]) -> None:
    second = Chain(chain.root, chain.store, attempt=2)
    second.publish_folder(copied(saved[4], chain.root / "second-2"), 2)
    old, new = (chain.versions[3], chain.digests[3]), (second.versions[2], second.digests[2])
    Rebuilding(chain, workers, old, new).kill_everywhere()


def test_a_trainer_that_publishes(chain: Chain, workers: Workers, saved: dict[int, Path], tmp_path: Path) -> None:
    """The version counts or does not; the resumed attempt publishes it again under its own name."""
    tries = 0

    def publish(attempt: int, versions: tuple[int, ...], **how: object):
        nonlocal tries
        tries += 1
        place = tmp_path / f"try-{tries}"
        folders = {version: copied(saved[version], place / str(version)) for version in versions}
        return workers.publish(chain.store, place / "work", attempt, folders, **how)

    def wanted(attempt: int, version: int) -> Wanted:
        digest = file_sha256(saved[version] / WEIGHTS)
        key = f"runs/r/a{attempt}/v{version:06d}/model"
        return Wanted(name=f"run-r.a{attempt}@v{version}", uri=key, sha256=digest)

    start = tmp_path / "start"
    CheckpointKeeper(chain.store, start).bring(wanted(1, 3))
    complete = publish(1, (1, 2, 3, 4))
    assert complete.error == "" and complete.calls > 100
    points = random.Random(8).sample(range(1, complete.calls + 1), NUM_POINTS)
    outcomes = set()
    for number, how in enumerate([{"kill_at": p} for p in points] + [{"barrier": b} for b in OF_PUBLISHING]):
        folder = Path(chain.store.path("runs/r/a1/v000004"))
        shutil.rmtree(folder, ignore_errors=True)
        assert publish(1, (1, 2, 3, 4), **how).killed, how
        keeper = CheckpointKeeper(chain.store, copied(start, tmp_path / f"cache-{number}"))
        try:
            keeper.bring(wanted(1, 4))
            outcomes.add(True)
        except DeltaError as error:
            assert "v000004/model/manifest.json is missing" in str(error), how
            outcomes.add(False)
        expected = saved[4 if (folder / "model" / "manifest.json").exists() else 3]
        assert digest_served(keeper) == file_sha256(expected / WEIGHTS), how
        if number % 3 == 0:  # the next attempt resumes from version 3, or from 4 where that was complete
            shutil.rmtree(Path(chain.store.path("runs/r/a2")), ignore_errors=True)
            assert publish(2, (4,)).error == ""
            assert keeper.bring(wanted(2, 4)).sha256 == digest_served(keeper) == file_sha256(saved[4] / WEIGHTS)
        shutil.rmtree(keeper.cache)
    assert outcomes == {False, True}
