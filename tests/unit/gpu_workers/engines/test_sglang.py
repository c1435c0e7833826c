"""The client against a server that misbehaves on demand: what is sent again, what is not, and what is said."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest
from gpu_workers.engines import http
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.sglang import SGLangEngine

ANSWER = {
    "output_ids": [7, 8],
    "text": "x",
    "meta_info": {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
        "weight_versions": [{"version": "default", "start": 0, "end": 2}],
        "cached_tokens": 3,
        "queue_time": 0.5,
        "e2e_latency": 2.0,
    },
}
Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answers(body: object = ANSWER, status: int = 200, **headers: str) -> Behaviour:
    async def behave(writer: asyncio.StreamWriter) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    return behave


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def stays_silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


class Server:
    """Answers request n by behaviour n, the last one for ever; notes what it was asked."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = [answers()]
        self.asked: list[tuple[str, dict]] = []
        self.num_connections = self.num_open = self.most_open = 0
        self._tasks: set[asyncio.Task] = set()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while not writer.is_closing() and (line := await reader.readline()):
                size = 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        size = int(header.split(b":")[1])
                body = json.loads(await reader.readexactly(size) or b"{}")
                self.asked.append((line.split()[1].decode(), body))
                behave = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
                self.num_open += 1
                self.most_open = max(self.most_open, self.num_open)
                try:
                    await behave(writer)
                    if not writer.is_closing():
                        await writer.drain()
                finally:
                    self.num_open -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(http, "_FIRST_WAIT_SECONDS", 0.001)
    faulty = Server()
    listening = await asyncio.start_server(faulty.serve, "127.0.0.1", 0)
    faulty.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    yield faulty
    listening.close()
    await faulty.stop()


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[SGLangEngine]:
    made = SGLangEngine(server.url, max_open_requests=4)  # type: ignore[attr-defined]
    yield made
    await made.close()


def ask(**fields: object) -> GenerateRequest:
    return GenerateRequest((1, 2), Sampling(max_new_tokens=2, seed=3), **fields)  # type: ignore[arg-type]


async def test_the_engines_own_measurements_are_kept(engine: SGLangEngine) -> None:
    result = await engine.generate(ask())
    assert (result.output_ids, result.logprobs, result.cached_tokens) == ([7, 8], [-0.5, -0.25], 3)
    assert result.engine_seconds == pytest.approx(2.0, abs=0.2)
    assert result.queue_seconds == pytest.approx(0.5, abs=0.2)
    assert [(s.version, s.start, s.stop) for s in result.spans] == [("default", 0, 2)]


async def test_calls_share_connections(engine: SGLangEngine, server: Server) -> None:
    for _ in range(5):
        await engine.generate(ask())
    assert server.num_connections == 1
    assert len(server.asked) == 5


async def test_a_full_engine_is_asked_again(engine: SGLangEngine, server: Server) -> None:
    full = {"detail": "The request queue is full."}
    server.behaviours = [answers(full, 503), answers(full, 429, retry_after="0.01"), answers()]
    assert (await engine.generate(ask())).output_ids == [7, 8]
    assert server.paths() == ["/generate"] * 3


async def test_patience_with_a_full_engine_ends(
    engine: SGLangEngine, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BUSY_SECONDS", 0.05)
    server.behaviours = [answers({"detail": "The request queue is full."}, 503)]
    for call in (engine.generate(ask()), anext(engine.stream(ask()))):
        with pytest.raises(EngineError, match="queue is full") as refused:
            await call
        assert (refused.value.status, refused.value.retryable) == (503, True)


async def test_a_generation_that_may_have_begun_is_not_sent_again(engine: SGLangEngine, server: Server) -> None:
    server.behaviours = [hangs_up]
    with pytest.raises(EngineError, match="does not answer") as lost:
        await engine.generate(ask())
    assert lost.value.retryable
    assert server.paths() == ["/generate"]


async def test_what_may_be_done_twice_is_sent_again(engine: SGLangEngine, server: Server) -> None:
    server.behaviours = [hangs_up, hangs_up, answers({})]
    await engine.abort("r")
    assert server.paths() == ["/abort_request"] * 3
    assert server.asked[-1][1] == {"rid": "r#"}
    server.behaviours = [hangs_up]
    with pytest.raises(EngineError, match="does not answer"):
        await engine.pause("retract")


async def test_a_load_whose_answer_was_lost_is_not_sent_again(engine: SGLangEngine, server: Server) -> None:
    """Twice would be refused as a duplicate: the caller reads back what holds."""
    server.behaviours = [hangs_up]
    for call in (engine.load_adapter("a", "/a"), engine.update_weights("/m", "v1")):
        with pytest.raises(EngineError, match="does not answer"):
            await call
    assert server.paths() == ["/load_lora_adapter", "/update_weights_from_disk"]


async def test_an_absent_server_is_tried_three_times_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_WAIT_SECONDS", 0.001)
    engine = SGLangEngine("http://127.0.0.1:1")
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1 does not answer") as absent:
        await engine.generate(ask())
    assert (absent.value.status, absent.value.retryable) == (0, True)
    assert not await engine.healthy()
    await engine.close()


async def test_a_cancelled_call_aborts_its_request(engine: SGLangEngine, server: Server) -> None:
    server.behaviours = [stays_silent, answers({})]
    task = asyncio.create_task(engine.generate(ask(request_id="mine")))
    while not server.asked:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.asked[1:] == [("/abort_request", {"rid": "mine#"})]


async def test_one_cancelled_while_it_waits_for_its_turn_asks_nothing(engine: SGLangEngine, server: Server) -> None:
    server.behaviours = [stays_silent]
    tasks = [asyncio.create_task(engine.generate(ask())) for _ in range(5)]
    while len(server.asked) < 4:
        await asyncio.sleep(0.001)
    tasks[4].cancel()
    await asyncio.gather(tasks[4], return_exceptions=True)
    assert server.paths() == ["/generate"] * 4
    server.behaviours = [answers({})]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_only_so_many_requests_are_open_and_waiting_is_queueing(engine: SGLangEngine, server: Server) -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        await answers()(writer)

    server.behaviours = [slowly]
    results = await asyncio.gather(*(engine.generate(ask()) for _ in range(12)))
    assert server.most_open == 4
    assert max(r.queue_seconds for r in results) >= 0.5 + 0.09
    assert all(r.engine_seconds - r.queue_seconds == pytest.approx(1.5) for r in results)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (answers("no JSON"), "not JSON"),
        (answers(ANSWER | {"output_ids": [7]}), "1 tokens but 2 log-probs"),
        (answers({"error": {"message": "top_p must be in (0, 1]"}}, 400), "top_p"),
        (answers({"error_message": "no such adapter"}, 400), "no such adapter"),
        (answers("plain words", 500), "plain words"),
    ],
)
async def test_a_bad_answer_is_told(engine: SGLangEngine, server: Server, behaviour: Behaviour, message: str) -> None:
    server.behaviours = [behaviour]
    with pytest.raises(EngineError, match=message):
        await engine.generate(ask())


@pytest.mark.parametrize(
    "body",
    [
        [1],
        {},
        {"output_ids": [7]},
        {"output_ids": ["x"], "meta_info": {}},
        {"output_ids": [7], "meta_info": {"output_token_logprobs": [[]]}},
        {"output_ids": [7], "meta_info": {"finish_reason": "stop"}},
        {"output_ids": [7], "meta_info": {"weight_versions": [{"version": "1"}]}},
    ],
)
async def test_an_answer_that_is_no_generation_is_the_engines_fault(
    engine: SGLangEngine, server: Server, body: object
) -> None:
    server.behaviours = [answers(body)]
    with pytest.raises(EngineError, match="no generation"):
        await engine.generate(ask())


async def test_a_log_prob_that_is_no_number_is_told_as_such(engine: SGLangEngine, server: Server) -> None:
    """So that the probe of an install refuses the weights."""
    server.behaviours = [answers({"output_ids": [7], "meta_info": {"output_token_logprobs": [[None, 7, None]]}})]
    assert math.isnan((await engine.generate(ask())).logprobs[0])


async def test_half_an_event_is_the_engines_fault(engine: SGLangEngine, server: Server) -> None:
    server.behaviours = [answers('data: {"output_ids": [7\n\n')]
    with pytest.raises(EngineError, match="not JSON"):
        async for _ in engine.stream(ask()):
            pass


async def test_a_stream_that_ends_with_a_refusal_is_refused(engine: SGLangEngine, server: Server) -> None:
    """As SGLang 0.5.23 answers a regex that does not compile, after a token that it was free to choose."""
    finish = {"type": "abort", "message": "Failed to compile regex grammar", "status_code": 400}
    event = {**ANSWER, "meta_info": {**ANSWER["meta_info"], "finish_reason": finish}}
    server.behaviours = [answers(f"data: {json.dumps(event)}\n\n", content_type="text/event-stream"), answers({})]
    with pytest.raises(EngineError, match="compile regex") as error:
        async for _ in engine.stream(ask()):
            pass
    assert (error.value.status, error.value.retryable) == (400, False)


async def test_a_stream_that_breaks_off_is_an_error_and_aborted(engine: SGLangEngine, server: Server) -> None:
    event = f"data: {json.dumps(ANSWER)}\n\n"
    server.behaviours = [answers(event, content_type="text/event-stream"), answers({})]
    seen = []
    with pytest.raises(EngineError, match="stream ended"):
        async for result in engine.stream(ask(request_id="cut")):
            seen.append(result.output_ids)
    assert seen == [[7, 8]]
    assert server.asked[1] == ("/abort_request", {"rid": "cut#"})


async def test_the_refusal_of_a_change_says_why(engine: SGLangEngine, server: Server) -> None:
    server.behaviours = [answers({"success": False, "message": "shape of x differs"})]
    with pytest.raises(EngineError, match="shape of x differs") as refused:
        await engine.update_weights("/m", "v2")
    assert refused.value.status == 400
