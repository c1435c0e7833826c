"""One suite for every RolloutEngine: the scripted fake, SGLang's client against the embedded engine, and, with
`make test-sglang`, against a real SGLang and through sglang-router. Where they differ, SGLang is right."""

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_workers.engines.fleet import EngineFleet
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from gpu_workers.models.folder import write_json
from tests.sglang import server
from tests.support.engines import Case
from tests.support.transfers import changed
from tests.unit.gpu_workers.engines.serving import make_adapter, serving

KINDS = ["scripted", "embedded", *(["sglang", "router"] if server.FOLDER else [])]
PROMPT = (1, 20, 21, 22, 23)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="package")
def tiny_weights(folder: Path) -> tuple[Path, Path]:
    """Without an end token: a request ends only when a test ends it."""
    own, other = tiny.prepare(folder), tiny.prepare(folder, seed=1, name="other")
    for model in (own, other):
        write_json(model / "generation_config.json", {"eos_token_id": []})
    return own, other


@pytest.fixture(scope="package")
def embedded_url(tiny_weights: tuple[Path, Path]) -> Iterator[str]:
    with serving(tiny_weights[0], "--max-loras", "3") as (url, _):
        yield url


@pytest.fixture(scope="package")
def smollm2(folder: Path) -> tuple[Path, Path]:
    own = server.model()
    return own, changed(own, folder / "changed")


@pytest.fixture(scope="package")
def sglang_url(smollm2: tuple[Path, Path]) -> Iterator[str]:
    with server.sglang(smollm2[0]) as url:
        yield url


@pytest.fixture(scope="package")
def router_url(sglang_url: str) -> Iterator[str]:
    with server.router(sglang_url) as url:
        yield url


@pytest.fixture(params=KINDS)
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    if request.param in ("scripted", "embedded"):
        weights = request.getfixturevalue("tiny_weights")
        if request.param == "scripted":
            engine = ScriptedEngine(token_seconds=0.001, max_adapters=3, eos_id=-1, model_path=str(weights[0]))
        else:
            engine = SGLangEngine(request.getfixturevalue("embedded_url"))
        made = Case(engine, make_adapter, weights, PROMPT, long=900, medium=200, patience=60)
    else:
        made = real(request)
    yield made
    await made.reset()
    await made.engine.close()


def real(request: pytest.FixtureRequest) -> Case:
    """SGLang draws without regard to the seed on a CPU, and takes a token id as it comes."""
    smollm2: tuple[Path, Path] = request.getfixturevalue("smollm2")
    url = request.getfixturevalue("sglang_url")
    engine: SGLangEngine | EngineFleet = SGLangEngine(url)
    if request.param == "router":
        engine = EngineFleet([(url, engine)], router=SGLangEngine(request.getfixturevalue("router_url")))
    adapter = partial(make_adapter, model=json.loads((smollm2[0] / "config.json").read_text()))
    return Case(
        engine, adapter, smollm2, server.ENDLESS_PROMPT, long=600, medium=32, patience=240, seeded=False,
        max_adapters=server.MAX_LOADED_LORAS, checks_vocabulary=False, survives_torn_files=False,
        is_fleet=request.param == "router",
    )  # fmt: skip
