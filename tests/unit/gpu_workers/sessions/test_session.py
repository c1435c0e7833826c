from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_workers.contracts.groups import decode_group, encode_group
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, VersionSpan, WorkerError
from gpu_workers.contracts.tasks import Message
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.session import ContextFullError, TokenSession

PROMPT = [Message(role="user", content="2+3?")]
POLICY = PolicyRef(adapter="run-1.a1@v4", version=4)


class Engine:
    """Answers with the given results and keeps the requests."""

    def __init__(self, *results: GenerateResult) -> None:
        self.results = list(results)
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        self.requests.append(request)
        return self.results.pop(0)


def result(ids: Sequence[int], finish: str = "stop", spans: Sequence[VersionSpan] = ()) -> GenerateResult:
    return GenerateResult(
        output_ids=list(ids), logprobs=[-0.5 - i for i in range(len(ids))], finish_reason=finish, spans=list(spans)
    )


@pytest.fixture
def template(tiny_model: Path) -> ChatTemplate:
    return ChatTemplate(tiny_model)


async def test_sampled_ids_are_kept_as_they_are(template: ChatTemplate) -> None:
    """Whatever text they decode to: the next request starts with exactly the ids that were sent and sampled."""
    first, second = [7, 7, template.eos_id], [9, template.eos_id]
    engine = Engine(result(first), result(second))
    session = TokenSession(template, PROMPT, POLICY)
    prompt = list(session.ids)
    await session.generate_turn(engine, Sampling(), request_id="r0")
    session.append([Message(role="tool", content="5")])
    suffix = template.suffix([Message(role="tool", content="5")])
    await session.generate_turn(engine, Sampling(), request_id="r1")
    assert list(engine.requests[0].input_ids) == prompt
    assert list(engine.requests[1].input_ids) == prompt + first + suffix
    assert session.ids == prompt + first + suffix + second
    assert session.mask == [0] * len(prompt) + [1] * 3 + [0] * len(suffix) + [1] * 2
    assert session.logprobs[len(prompt) : len(prompt) + 3] == [-0.5, -1.5, -2.5]
    assert {v for v, m in zip(session.versions, session.mask, strict=True) if m} == {4}
    assert {v for v, m in zip(session.versions, session.mask, strict=True) if not m} == {-1}


async def test_spans_of_turns_cover_the_tokens(template: ChatTemplate) -> None:
    session = TokenSession(template, PROMPT, POLICY)
    await session.generate_turn(Engine(result([7, template.eos_id])), Sampling(), request_id="r")
    session.append([Message(role="tool", content="5")])
    spans = [(turn.role, turn.token_start, turn.token_stop) for turn in session.turns]
    prompt = session.num_prompt_tokens
    assert spans == [
        ("user", 0, prompt),
        ("assistant", prompt, prompt + 2),
        ("tool", prompt + 2, len(session.ids)),
    ]


async def test_a_turn_stopped_by_text_is_closed_with_an_unsampled_token(template: ChatTemplate) -> None:
    session = TokenSession(template, PROMPT, POLICY)
    await session.generate_turn(Engine(result([7])), Sampling(), request_id="r")
    session.append([Message(role="tool", content="5")])
    at = session.num_prompt_tokens + 1
    assert (session.ids[at], session.mask[at]) == (template.eos_id, 0)


async def test_each_turn_draws_with_its_own_seed_and_fits_the_context(template: ChatTemplate) -> None:
    engine = Engine(result([7, template.eos_id]), result([8, template.eos_id]))
    session = TokenSession(template, PROMPT, POLICY, context_limit=110)
    await session.generate_turn(engine, Sampling(seed=5, max_new_tokens=1000), request_id="r0")
    session.append([Message(role="tool", content="5")])
    await session.generate_turn(engine, Sampling(seed=5, max_new_tokens=1000), request_id="r1")
    seeds = [request.sampling.seed for request in engine.requests]
    assert seeds[0] == 5
    assert seeds[1] != 5
    for request in engine.requests:
        assert request.sampling.max_new_tokens == 110 - len(request.input_ids)


async def test_a_full_context_is_said_before_asking_the_engine(template: ChatTemplate) -> None:
    engine = Engine()
    session = TokenSession(template, PROMPT, POLICY, context_limit=10)
    with pytest.raises(ContextFullError):
        await session.generate_turn(engine, Sampling(), request_id="r")
    assert engine.requests == []


@pytest.mark.parametrize(
    "bad",
    [
        GenerateResult(output_ids=[7, 8], logprobs=[-1.0], finish_reason="stop"),
        GenerateResult(output_ids=[7], logprobs=[-1.0], finish_reason="abort"),
        GenerateResult(output_ids=[], logprobs=[], finish_reason="stop"),
    ],
)
async def test_a_useless_result_is_the_engines_failure(template: ChatTemplate, bad: GenerateResult) -> None:
    session = TokenSession(template, PROMPT, POLICY)
    with pytest.raises(WorkerError) as caught:
        await session.generate_turn(Engine(bad), Sampling(), request_id="r")
    assert caught.value.boundary == "engine"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(PolicyRef(version=3), [3, 5, 5]), (PolicyRef(adapter="a@v9", version=9), [9, 9, 9])],
)
async def test_versions_come_from_the_engine_only_without_an_adapter(
    template: ChatTemplate, policy: PolicyRef, expected: list[int]
) -> None:
    spans = [VersionSpan("3", 0, 1), VersionSpan("5", 1, 3)]
    session = TokenSession(template, PROMPT, policy)
    await session.generate_turn(Engine(result([7, 8, template.eos_id], spans=spans)), Sampling(), request_id="r")
    assert session.versions[session.num_prompt_tokens :] == expected
    assert session.version_range() == (min(expected), max(expected))


async def test_tokens_survive_the_group_file(template: ChatTemplate) -> None:
    session = TokenSession(template, PROMPT, POLICY)
    await session.generate_turn(Engine(result([7, template.eos_id])), Sampling(), request_id="r")
    (read,) = decode_group(encode_group([session.tokens(0.25)], {}))
    assert read.tokens.tolist() == session.ids
    assert read.mask.tolist() == session.mask
    assert read.versions.tolist() == session.versions
    assert read.reward == 0.25
