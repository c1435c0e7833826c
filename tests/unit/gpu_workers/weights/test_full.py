"""Full weights against engines that fail: nothing installed silently, nothing sampled over another's cache."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from gpu_workers.contracts.messages import AdapterInstall, FleetJob, Sampling, Transfer
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.fleet import EngineFleet
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models.folder import read_description
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.packing import TokenSequence, pack
from gpu_workers.trainer.publishing import CheckpointPublisher
from gpu_workers.weights import in_place
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.fleet import install_on_fleet
from gpu_workers.weights.full import FullTransfer
from tests.support.transfers import Case
from tests.unit.gpu_workers.engines.serving import serving
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec


class Idle(ScriptedEngine):
    """Takes the version and leaves the weights as they were."""

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        self.weight_version = version


class Forgetful(ScriptedEngine):
    """Takes the weights and keeps the old version."""

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        await super().update_weights(path, self.weight_version, flush_cache=flush_cache)


class Stuck(ScriptedEngine):
    """Flushes nothing until its requests have been aborted."""

    def __init__(self, *, ever: bool = True, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.ever = ever
        self.resumed = 0

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        await super().update_weights(path, version, flush_cache=False)

    async def flush_cache(self) -> None:
        if self._pause_mode != "abort" or not self.ever:
            raise EngineError("cannot flush", status=400)

    async def resume(self) -> None:
        self.resumed += 1
        await super().resume()


class Infinite(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        return GenerateResult([1], [float("nan")], "length")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "_FLUSH_WAIT_SECONDS", 0.001)


def make_case(engine: ScriptedEngine, tiny_model: Path, tmp_path: Path) -> Case:
    store = ObjectStore(f"file://{tmp_path / 'store'}")
    transfer = FullTransfer([("a", engine)], store, tmp_path / "cache")

    async def held() -> list[set[str]]:
        return [{engine.weight_version}]

    engine.model_path = str(tiny_model)
    return Case(transfer, store, [engine], tiny_model, held, full=True)


async def refused(engine: ScriptedEngine, tiny_model: Path, tmp_path: Path, match: str) -> AdapterInstall:
    case = make_case(engine, tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    with pytest.raises(InstallError, match=match):
        await case.transfer.install([item], [])
    return item


async def test_an_update_that_silently_does_nothing_is_caught(tiny_model: Path, tmp_path: Path) -> None:
    engine = Idle()
    await refused(engine, tiny_model, tmp_path, "its weights did not change")
    assert (await asyncio.wait_for(engine.generate(ask()), 30)).output_ids, "it goes on, under whatever it has"


async def test_a_version_that_is_not_taken_is_caught(tiny_model: Path, tmp_path: Path) -> None:
    await refused(Forgetful(), tiny_model, tmp_path, "says it has 'default'")


async def test_equal_bytes_under_a_new_version_are_no_failure(tiny_model: Path, tmp_path: Path) -> None:
    """A step whose update was refused for NaN publishes the bytes of the version before."""
    case = make_case(ScriptedEngine(), tiny_model, tmp_path)
    first = case.publish(tmp_path / "1", 1)
    await case.transfer.install([first], [])
    again = AdapterInstall(name=first.name.replace("v1", "v2"), uri=first.uri, sha256=first.sha256, version=2)
    await case.transfer.install([again], [])
    assert await case.held() == [{again.name}]


async def test_requests_are_aborted_where_the_cache_cannot_be_flushed(tiny_model: Path, tmp_path: Path) -> None:
    engine = Stuck(token_seconds=0.001)
    task = asyncio.create_task(engine.generate(ask(900)))
    while not engine.num_tokens:
        await asyncio.sleep(0.001)
    await refused(engine, tiny_model, tmp_path, "does not flush")
    assert (await asyncio.wait_for(task, 30)).finish_reason == "abort"
    assert engine.resumed == 1


async def test_an_engine_that_never_flushes_stays_paused(tiny_model: Path, tmp_path: Path) -> None:
    engine = Stuck(ever=False)
    await refused(engine, tiny_model, tmp_path, "does not flush")
    assert engine.resumed == 0


async def test_weights_that_sample_no_finite_log_probs_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    await refused(Infinite(), tiny_model, tmp_path, "not finite")


async def test_an_engine_that_restarted_with_its_old_weights_is_not_sampled_from(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_workers.engines.fleet.RECHECK_SECONDS", 0.0)
    engine = ScriptedEngine()
    case = make_case(engine, tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    await case.transfer.install([item], [])
    fleet = EngineFleet([("a", engine)])
    wanted = GenerateRequest((1, 20), Sampling(max_new_tokens=4), weights=item.name)
    assert [span.version for span in (await fleet.generate(wanted)).spans] == ["1"]
    engine.model_path, engine.weight_version = str(tiny_model), "default"  # as after a restart
    with pytest.raises(EngineError, match="restarted"):
        await fleet.generate(wanted)
    with pytest.raises(EngineError, match="has weights 'default'"):
        await fleet.generate(wanted)
    await case.transfer.install([item], [])
    assert [span.version for span in (await fleet.generate(wanted)).spans] == ["1"]


async def test_a_fleet_half_way_says_what_each_engine_has(tiny_model: Path, tmp_path: Path) -> None:
    good, bad = ScriptedEngine(model_path=str(tiny_model)), Idle(model_path=str(tiny_model))
    case = make_case(good, tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    transfer = FullTransfer([("good", good), ("bad", bad)], case.store, tmp_path / "cache")
    with pytest.raises(InstallError, match="engine bad"):
        await transfer.install([item], [])
    assert (await good.info()).weight_version == item.name
    assert good.num_updates == 1
    bad.__class__ = ScriptedEngine
    bad.weight_version = "default"
    report = await transfer.install([item], [])
    assert report.engines == ["good", "bad"]
    assert (good.num_updates, bad.num_updates) == (1, 1)


async def test_a_folder_that_nobody_can_read_here_is_judged_by_its_version(tiny_model: Path, tmp_path: Path) -> None:
    class Remote(ScriptedEngine):
        async def info(self) -> EngineInfo:
            info = await super().info()
            return EngineInfo("/only/there", info.weight_version, info.adapters, info.raw)

    case = make_case(Remote(), tiny_model, tmp_path)
    item = case.publish(tmp_path / "1", 1)
    report = await case.transfer.install([item], [])
    assert report.installed == [item.name]


def ask(num: int = 4) -> GenerateRequest:
    return GenerateRequest((1, 20, 21), Sampling(max_new_tokens=num))


async def test_the_fleet_job_of_a_full_run(tiny_model: Path, tmp_path: Path) -> None:
    """From the trainer's publication to a token that says which version it is from, on a real engine."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny").symlink_to(tiny_model)
    store = ObjectStore(f"file://{tmp_path / 'objects'}")
    base = BaseModel("tiny", tiny_model, read_description(tiny_model).fingerprint)
    trainer = PolicyTrainer(make_spec(trainer={"update": "full"}), base, run_id="x", attempt=1)
    trainer.step("b", make_groups(0))
    published = CheckpointPublisher(store, "x", 1).publish(trainer)
    assert published.adapter.endswith("/model")
    item = AdapterInstall(name=trainer.adapter_name, uri=published.adapter, sha256=published.sha256, version=1)
    with serving(tiny_model) as (url, _):
        job = FleetJob(job_id="j", base_model="tiny", install=[item], transfer=Transfer.FULL)
        report = await install_on_fleet(job, store, home / "models", tmp_path / "cache", [url])
        assert (report.ok, report.installed, report.num_bytes) == (True, [item.name], published.num_bytes), report
        engine = SGLangEngine(url)
        request = GenerateRequest((30, 40, 50), Sampling(max_new_tokens=8, temperature=1.0), weights=item.name)
        result = await engine.generate(request)
        await engine.close()
    assert [span.version for span in result.spans] == ["1"]
    tokens = np.array([30, 40, 50, *result.output_ids], np.int32)
    rows = pack([TokenSequence(tokens, np.array([0] * 3 + [1] * len(result.output_ids), np.uint8))], max_row_tokens=64)
    ours = trainer.policy.evaluate(rows, 1.0)[0].logprob_U.numpy()[rows[0].edge_T]
    assert np.abs(ours - np.array(result.logprobs)).max() < 2e-3, "the engine samples from what the trainer trained"
