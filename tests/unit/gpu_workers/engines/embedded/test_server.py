"""The HTTP rules of SGLang's API: fields, statuses, order of control calls."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.models import tiny
from gpu_workers.models.folder import describe, write_json
from tests.unit.gpu_workers.engines.serving import make_adapter, make_engine, serving

PROMPT = [1, 20, 21, 22]


@pytest.fixture(scope="module")
def served(endless_model: Path) -> Iterator[tuple[str, Engine]]:
    with serving(endless_model) as running:
        yield running


@pytest.fixture
async def http(served: tuple[str, Engine]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served[0], timeout=20) as client:
        yield client
        await client.post("/continue_generation")
        await client.post("/abort_request", json={"abort_all": True})


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with another initialisation."""
    return tiny.prepare(tmp_path_factory.mktemp("other"), seed=1, name="other")


def body(num: int = 5, **fields: Any) -> dict[str, Any]:
    sampling = fields.pop("sampling", {})
    return {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": num, **sampling}, **fields}


async def generate(http: httpx.AsyncClient, **fields: Any) -> Any:
    response = await http.post("/generate", json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


async def begun(http: httpx.AsyncClient, num: int = 900, **fields: Any) -> asyncio.Task[Any]:
    """A generation that has a row."""
    task = asyncio.ensure_future(generate(http, num=num, **fields))
    for _ in range(400):
        if (await http.get("/v1/loads")).json()["loads"][0]["num_running_reqs"]:
            return task
        await asyncio.sleep(0.005)
    raise AssertionError("the request did not start")


async def test_the_answer_has_sglangs_fields(http: httpx.AsyncClient) -> None:
    answer = await generate(http, num=6, rid="mine", return_logprob=True, logprob_start_len=1)
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 6
    assert (meta["id"], meta["prompt_tokens"], meta["finish_reason"]) == ("mine", 4, {"type": "length", "length": 6})
    assert [row[1:] for row in meta["output_token_logprobs"]] == [[token, None] for token in answer["output_ids"]]
    assert [row[1] for row in meta["input_token_logprobs"]] == PROMPT[1:]
    assert meta["input_token_logprobs"][0][0] is None
    assert all(row[0] < 0 for row in meta["input_token_logprobs"][1:])
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 6}]
    assert meta["e2e_latency"] >= meta["queue_time"] >= 0
    assert isinstance(answer["text"], str)


async def test_without_return_logprob_there_are_none(http: httpx.AsyncClient) -> None:
    assert "output_token_logprobs" not in (await generate(http))["meta_info"]


async def test_a_list_is_answered_in_order(http: httpx.AsyncClient, tmp_path: Path) -> None:
    assert (
        await http.post("/load_lora_adapter", json={"lora_name": "l", "lora_path": str(make_adapter(tmp_path))})
    ).is_success
    prompts = [[1, 5], [1, 6, 7], [1, 5]]
    greedy = {"max_new_tokens": 4, "temperature": 0}
    answers = (await http.post("/generate", json={
        "input_ids": prompts, "sampling_params": greedy, "lora_path": [None, None, "l"], "return_logprob": True,
    })).json()  # fmt: skip
    assert [a["meta_info"]["prompt_tokens"] for a in answers] == [2, 3, 2]
    assert answers[0]["meta_info"]["output_token_logprobs"] != answers[2]["meta_info"]["output_token_logprobs"]
    assert (await http.post("/unload_lora_adapter", json={"lora_name": "l"})).json()["loaded_adapters"] == {}


async def test_n_samples_share_one_prompt(http: httpx.AsyncClient) -> None:
    answers = await generate(http, num=12, sampling={"n": 4, "sampling_seed": 9})
    assert len({tuple(a["output_ids"]) for a in answers}) == 4
    assert answers == sorted(answers, key=lambda a: a["meta_info"]["id"])


async def test_text_in_and_text_out(http: httpx.AsyncClient) -> None:
    response = await http.post(
        "/generate", json={"text": "<|im_start|>user\nhi", "sampling_params": {"max_new_tokens": 3}}
    )
    assert response.json()["meta_info"]["prompt_tokens"] == 8  # one special token, seven characters


async def test_a_stop_string_ends_and_is_cut_from_the_text_only(http: httpx.AsyncClient) -> None:
    free = await generate(http, num=30, sampling={"temperature": 0})
    stop = free["text"][4:6]
    answer = await generate(http, num=30, sampling={"temperature": 0, "stop": [stop]})
    cut = free["text"].index(stop)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert answer["text"] == free["text"][:cut]
    assert answer["output_ids"] == free["output_ids"][: len(answer["output_ids"])]
    kept = await generate(http, num=30, sampling={"temperature": 0, "stop": stop, "no_stop_trim": True})
    assert kept["text"] == free["text"][: cut + len(stop)]


async def test_end_tokens_end_unless_ignored(tiny_model: Path, http: httpx.AsyncClient) -> None:
    free = (await generate(http, num=10, sampling={"temperature": 0}))["output_ids"]
    stopped = await generate(http, num=10, sampling={"temperature": 0, "stop_token_ids": [free[3]]})
    assert stopped["output_ids"] == free[: free.index(free[3]) + 1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[3]}


async def test_a_stream_is_cumulative_and_ends_with_done(http: httpx.AsyncClient) -> None:
    events = []
    async with http.stream("POST", "/generate", json=body(7, stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(line[6:])
    assert events[-1] == "[DONE]"
    lengths = [len(json.loads(event)["output_ids"]) for event in events[:-1]]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 7
    assert json.loads(events[-2])["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": []}, "empty"),
        ({"input_ids": None}, "exactly one of input_ids and text"),
        ({"text": "x"}, "exactly one of input_ids and text"),
        ({"input_ids": [1, 100]}, "token id 100 is outside the vocabulary of 100"),
        ({"input_ids": [1, [2]]}, "mixes"),
        ({"input_ids": ["a"]}, "input_ids"),
        ({"input_ids": [5] * 1024}, "longer than the model's context length"),
        ({"input_ids": [5] * 1020}, "maximum context length of 1024"),
        ({"sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0, got -1"),
        ({"sampling_params": {"temperature": -1}}, "temperature must be non-negative, got -1"),
        ({"sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"sampling_params": {"top_p": 0}}, "top_p must be in"),
        ({"sampling_params": {"top_k": 0}}, "top_k must be"),
        ({"sampling_params": {"stop_regex": "a+"}}, "stop_regex is not supported"),
        ({"sampling_params": {"max_tokens": 4}}, "max_tokens is not a known parameter"),
        ({"lora_path": "nobody"}, "adapter 'nobody' is not loaded"),
        ({"input_ids": [[1], [2]], "lora_path": [None]}, "lora_path has 1 entries, input_ids 2"),
        ({"top_logprobs_num": 3}, "top_logprobs_num"),
    ],
)
async def test_bad_requests_are_400_and_say_why(http: httpx.AsyncClient, change: dict[str, Any], message: str) -> None:
    response = await http.post("/generate", json=body() | change)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_a_bad_stream_is_refused_by_an_event(http: httpx.AsyncClient) -> None:
    refused = await http.post("/generate", json=body(stream=True, sampling={"top_p": 0}))
    event, end = refused.text.strip().split("\n\n")
    error = json.loads(event.removeprefix("data: "))["error"]
    assert (refused.status_code, end) == (200, "data: [DONE]")
    assert (error["type"], error["code"], error["retryable"]) == ("invalid_request_error", 400, False)
    assert "top_p" in error["message"]


async def test_a_body_that_is_no_json_is_400(http: httpx.AsyncClient) -> None:
    for path in ("/generate", "/pause_generation", "/abort_request"):
        response = await http.post(path, content=b"{oops")
        assert (response.status_code, "body" in response.json()["error"]["message"]) == (400, True), path


async def test_an_aborted_request_answers_200_with_what_it_has(http: httpx.AsyncClient) -> None:
    task = await begun(http, rid="x")
    await asyncio.sleep(0.05)
    assert (await http.post("/abort_request", json={"rid": "x"})).status_code == 200
    answer = await asyncio.wait_for(task, 30)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < 900


async def test_a_call_of_many_is_aborted_by_its_one_id(http: httpx.AsyncClient) -> None:
    task = await begun(http, rid="many", sampling={"n": 3})
    await http.post("/abort_request", json={"rid": "many"})
    assert {a["meta_info"]["finish_reason"]["type"] for a in await asyncio.wait_for(task, 30)} == {"abort"}


async def test_an_abort_of_nothing_does_nothing(http: httpx.AsyncClient) -> None:
    task = await begun(http, num=200, rid="long name")
    for rid in ("", "lon", "long name, longer"):
        assert (await http.post("/abort_request", json={"rid": rid})).status_code == 200
    assert (await asyncio.wait_for(task, 20))["meta_info"]["finish_reason"]["type"] == "length"


async def test_pause_defaults_to_abort_and_an_unknown_mode_is_400(http: httpx.AsyncClient) -> None:
    task = await begun(http)
    assert (await http.post("/pause_generation", json={})).json()["status"] == "ok"
    assert (await asyncio.wait_for(task, 30))["meta_info"]["finish_reason"]["type"] == "abort"
    assert (await http.post("/pause_generation", json={"mode": "sleep"})).status_code == 400


async def test_flush_while_running_is_400(http: httpx.AsyncClient) -> None:
    task = await begun(http)
    refused = await http.post("/flush_cache")
    assert (refused.status_code, refused.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    await http.post("/abort_request", json={"abort_all": True})
    await task
    assert (await http.post("/flush_cache")).status_code == 200


async def test_in_place_without_flush_spans_two_versions(
    http: httpx.AsyncClient, other_weights: Path, endless_model: Path
) -> None:
    task = await begun(http, num=800)
    await http.post("/pause_generation", json={"mode": "in_place"})
    refused = await http.post(
        "/update_weights_from_disk", json={"model_path": str(other_weights), "weight_version": "v1"}
    )
    assert refused.status_code == 400
    assert "cannot flush" in refused.json()["message"]
    update = {"model_path": str(other_weights), "weight_version": "v1", "flush_cache": False}
    answer = (await http.post("/update_weights_from_disk", json=update)).json()
    assert (answer["success"], answer["num_paused_requests"]) == (True, 1)
    await http.post("/continue_generation", json={})
    result = await asyncio.wait_for(task, 20)
    spans = result["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "v1"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 800)
    back = {"model_path": str(endless_model), "weight_version": "default"}
    assert (await http.post("/update_weights_from_disk", json=back)).json()["success"]


async def test_retract_and_flush_recompute_under_the_new_weights(
    http: httpx.AsyncClient, other_weights: Path, endless_model: Path
) -> None:
    task = await begun(http, num=800)
    await http.post("/pause_generation", json={"mode": "retract"})
    update = {"model_path": str(other_weights), "weight_version": "v2"}
    assert (await http.post("/update_weights_from_disk", json=update)).json()["success"]
    assert (await http.get("/model_info")).json()["weight_version"] == "v2"
    await http.post("/continue_generation", json={})
    meta = (await asyncio.wait_for(task, 20))["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == ["default", "v2"]
    assert meta["num_retractions"] == 1
    back = {"model_path": str(endless_model), "weight_version": "default"}
    assert (await http.post("/update_weights_from_disk", json=back)).json()["success"]


async def test_an_update_changes_the_logprobs_and_undoing_it_restores_them(
    http: httpx.AsyncClient, other_weights: Path, endless_model: Path
) -> None:
    async def greedy() -> Any:
        answer = await generate(http, num=5, sampling={"temperature": 0}, return_logprob=True)
        return answer["meta_info"]["output_token_logprobs"]

    before = await greedy()
    await http.post("/update_weights_from_disk", json={"model_path": str(other_weights)})
    assert await greedy() != before
    await http.post("/update_weights_from_disk", json={"model_path": str(endless_model)})
    assert await greedy() == before


async def test_an_update_waits_for_running_requests(http: httpx.AsyncClient, endless_model: Path) -> None:
    task = await begun(http, num=800)
    await http.post("/update_weights_from_disk", json={"model_path": str(endless_model)})
    assert len((await asyncio.wait_for(task, 0.5))["output_ids"]) == 800  # its answer was on its way


async def test_weights_that_do_not_fit_are_refused_and_serving_goes_on(
    http: httpx.AsyncClient, other_weights: Path, tmp_path: Path
) -> None:
    for name, damage in (("missing", None), ("torn", b"\x08\0\0"), ("shape", "config")):
        folder = tmp_path / name
        if damage is not None:
            shutil.copytree(other_weights, folder)
        if isinstance(damage, bytes):
            (folder / "model.safetensors").write_bytes(damage)
        elif damage == "config":
            write_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | {"hidden_size": 256})
        response = await http.post("/update_weights_from_disk", json={"model_path": str(folder)})
        assert (response.status_code, response.json()["success"]) == (400, False), name
        assert str(folder) in response.json()["message"]
    assert (await generate(http))["output_ids"]


async def test_update_weight_version_aborts_unless_told_not_to(http: httpx.AsyncClient) -> None:
    task = await begun(http, num=800)
    await http.post("/update_weight_version", json={"new_version": "named", "abort_all_requests": False})
    assert [s["version"] for s in (await task)["meta_info"]["weight_versions"]] == ["default", "named"]
    task = await begun(http)
    await http.post("/update_weight_version", json={"new_version": "default"})
    assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"


async def test_adapter_answers_follow_sglang(http: httpx.AsyncClient, tmp_path: Path) -> None:
    load = {"lora_name": "a", "lora_path": str(make_adapter(tmp_path / "a"))}
    answer = (await http.post("/load_lora_adapter", json=load)).json()
    assert answer == {"success": True, "error_message": None, "loaded_adapters": {"a": load["lora_path"]}}
    cards = (await http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("base", None), ("a", "base")]
    again = await http.post("/load_lora_adapter", json=load)
    assert (again.status_code, again.json()["success"]) == (400, False)
    assert (await http.post("/unload_lora_adapter", json={"lora_name": "a"})).json()["loaded_adapters"] == {}
    assert (await http.post("/unload_lora_adapter", json={"lora_name": "a"})).status_code == 400


async def test_a_client_that_leaves_stops_its_work(http: httpx.AsyncClient, served: tuple[str, Engine]) -> None:
    task = await begun(http)
    task.cancel()
    for _ in range(200):
        if served[1].num_running == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the engine went on for nobody")


async def test_health_info_and_metrics(http: httpx.AsyncClient, endless_model: Path) -> None:
    assert (await http.get("/health")).status_code == (await http.get("/health_generate")).status_code == 200
    await http.post("/pause_generation", json={})
    assert (await http.get("/health_generate")).status_code == 200
    await http.post("/continue_generation", json={})
    info = (await http.get("/server_info")).json()
    assert (info["context_length"], info["max_running_requests"], info["dtype"]) == (1024, 64, "float32")
    model = (await http.get("/model_info")).json()
    assert model["model_path"] == str(endless_model)
    assert model["model_fingerprint"] == describe(endless_model, tiny.NAME).fingerprint
    text = (await http.get("/metrics")).text
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds",
                 "queue_time_seconds", "num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate",
                 "gen_throughput"):  # fmt: skip
        assert f"sglang:{name}" in text


async def test_a_dead_engine_says_so(endless_model: Path) -> None:
    with serving(endless_model) as (url, engine):
        engine.scheduler.step = None  # type: ignore[assignment]
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            lost = (await client.post("/generate", json=body())).json()
            assert lost["meta_info"]["finish_reason"]["type"] == "abort"
            assert (await client.get("/health")).status_code == 503
            refused = await client.post("/generate", json=body())
            assert refused.status_code == 500
            assert "restart" in refused.json()["error"]["message"]


@pytest.mark.parametrize("temperature", [1e-7, 1e-40, 1e-320])
async def test_a_temperature_next_to_nothing_is_greedy(http: httpx.AsyncClient, temperature: float) -> None:
    """As SGLang takes it; a division by it would overflow."""
    wanted, answer = [
        await generate(http, sampling={"temperature": t, "top_p": 0.9}, return_logprob=True) for t in (0.0, temperature)
    ]
    assert answer["output_ids"] == wanted["output_ids"]
    assert answer["meta_info"]["output_token_logprobs"] == wanted["meta_info"]["output_token_logprobs"]


async def test_half_an_adapter_and_one_of_a_deeper_model_are_refused(http: httpx.AsyncClient, tmp_path: Path) -> None:
    half, deep = make_adapter(tmp_path / "half"), make_adapter(tmp_path / "deep", num_layers=3)
    tensors = load_file(half / "adapter_model.safetensors")
    del tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]
    save_file(tensors, half / "adapter_model.safetensors")
    for folder, problem in ((half, "layer 1 up_proj has lora_A alone"), (deep, "there is a layer 2, the model has 2")):
        answer = await http.post("/load_lora_adapter", json={"lora_name": folder.name, "lora_path": str(folder)})
        assert answer.status_code == 400 and problem in answer.text


@pytest.mark.parametrize("settings", ["[1]", '{"r": "x"}', '{"r": null}', '{"r": 4, "lora_alpha": "y"}'])
async def test_settings_that_are_none_are_refused(http: httpx.AsyncClient, tmp_path: Path, settings: str) -> None:
    folder = make_adapter(tmp_path / "a")
    (folder / "adapter_config.json").write_text(settings)
    answer = await http.post("/load_lora_adapter", json={"lora_name": "a", "lora_path": str(folder)})
    assert answer.status_code == 400 and "adapter_config.json" in answer.text


@pytest.mark.parametrize("change", [{"max_position_embeddings": 4096}, {"rope_theta": 5.0}])
async def test_weights_of_other_positions_are_refused(
    http: httpx.AsyncClient, other_weights: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """The rotary table is the engine's own: it would be too short, or another one."""
    folder = tmp_path / "other"
    shutil.copytree(other_weights, folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | change))
    answer = await http.post("/update_weights_from_disk", json={"model_path": str(folder)})
    assert answer.status_code == 400 and "the served model's is" in answer.text


def test_weights_that_were_sent_are_computed_with_as_before(endless_model: Path) -> None:
    engine = make_engine(endless_model, "--deterministic")
    model = engine.pack_model(load_file(endless_model / "model.safetensors"))
    assert model.block_rows == engine.model.block_rows > 0
