"""Constrained output: JSON schemas, patterns, grammars and tags, in batches and streams, and what is refused."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from tokenizers import Tokenizer

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.engines.embedded import grammars
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.grammars import GrammarMatcher, Grammars
from gpu_workers.engines.embedded.request import RequestError
from gpu_workers.engines.schemas import JsonSchemaError, check_json_schema
from gpu_workers.models import smollm2, tiny
from gpu_workers.models.folder import ModelError
from tests.unit.gpu_workers.engines.serving import serving

PROMPT = [1, 20, 21, 22]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
COMPACT = r'\{"kind":"(cat|dog)","age":[0-9]{1,2}\}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tmp_path_factory.mktemp("ending"))


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[tuple[str, Engine]]:
    with serving(model) as running:
        yield running
        assert running[1].failure == ""


@pytest.fixture
async def http(served: tuple[str, Engine]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served[0], timeout=60) as client:
        yield client


async def generate(http: httpx.AsyncClient, sampling: Any, **fields: Any) -> Any:
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, **fields}
    response = await http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("seed", range(6))
async def test_an_answer_under_a_schema_is_of_the_schema(http: httpx.AsyncClient, seed: int) -> None:
    params = {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 400, "sampling_seed": seed, "temperature": 0.3}
    answer = await generate(http, params)
    if answer["meta_info"]["finish_reason"]["type"] == "stop":
        jsonschema.validate(json.loads(answer["text"]), SCHEMA)
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": tiny.EOS_ID}
    else:  # white space may go on for ever
        assert re.fullmatch(r'\{[\s\w":,]*', answer["text"])
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 400}


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"regex": COMPACT}, COMPACT),
        ({"ebnf": 'root ::= "yes" | "no" ", " root'}, "(no, )*yes"),
        ({"json_schema": '{"enum": ["x", "yy"]}'}, '"(x|yy)"'),
        (
            {"structural_tag": json.dumps({"type": "structural_tag", "format": {
                "type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": {"const": 7}},
                "end": "</a>",
            }})},
            "<a>7</a>",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", [{}, {"temperature": 0}, {"top_p": 0.5}, {"top_k": 3}])
async def test_every_kind_of_constraint_holds(
    http: httpx.AsyncClient, params: dict[str, Any], pattern: str, cut: dict[str, Any]
) -> None:
    answers = await asyncio.gather(
        *(generate(http, {**params, **cut, "max_new_tokens": 60, "sampling_seed": seed}) for seed in range(4))
    )
    ended = [answer for answer in answers if answer["meta_info"]["finish_reason"]["type"] == "stop"]
    assert ended or "ebnf" in params
    for answer in ended:
        assert re.fullmatch(pattern, answer["text"])
    for answer in answers:
        assert all(row[0] > -50 for row in answer["meta_info"]["output_token_logprobs"])


async def test_log_probs_are_of_what_was_left_to_sample(http: httpx.AsyncClient, served: Any) -> None:
    """As SGLang reports them: renormalised over what the grammar allows, here three tokens and then only the end."""
    engine: Engine = served[1]
    ids = [engine.text.tokenizer.token_to_id(letter) for letter in "abc"]
    answer = await generate(http, {"regex": "[abc]", "temperature": 0.7})
    first, end = answer["meta_info"]["output_token_logprobs"]
    free = []
    for token in ids:
        body = {"input_ids": [*PROMPT, token], "logprob_start_len": len(PROMPT) - 1}
        meta = (await generate(http, {"max_new_tokens": 1}, **body))["meta_info"]
        free.append(meta["input_token_logprobs"][1][0])
    expected = torch.log_softmax(torch.tensor(free) / 0.7, 0)[ids.index(first[1])]
    assert first[0] == pytest.approx(float(expected), abs=1e-5)
    assert end[:2] == [pytest.approx(0.0, abs=1e-6), tiny.EOS_ID]


async def test_a_batch_may_mix_constrained_and_free_requests(http: httpx.AsyncClient) -> None:
    free = {"max_new_tokens": 40, "sampling_seed": 5, "ignore_eos": True}
    held = {"max_new_tokens": 40, "sampling_seed": 5, "regex": COMPACT}
    alone = [await generate(http, params) for params in (free, held)]
    together = await generate(http, [free, held] * 4, input_ids=[PROMPT] * 8)
    for answer, before in zip(together, alone * 4, strict=True):
        assert answer["output_ids"] == before["output_ids"]
    assert re.fullmatch(COMPACT, alone[1]["text"])
    assert not re.match(r"\{", alone[0]["text"])


async def test_samples_of_one_call_are_held_each_for_itself(http: httpx.AsyncClient) -> None:
    answers = await generate(http, {"n": 6, "regex": "[a-z]{3}", "sampling_seed": 1})
    assert all(re.fullmatch("[a-z]{3}", answer["text"]) for answer in answers)
    assert len({answer["text"] for answer in answers}) > 1


async def test_length_and_stop_texts_end_an_answer_early(http: httpx.AsyncClient) -> None:
    cut = await generate(http, {"regex": COMPACT, "max_new_tokens": 5})
    assert (cut["text"], cut["meta_info"]["finish_reason"]) == ('{"kin', {"type": "length", "length": 5})
    stopped = await generate(http, {"regex": COMPACT, "stop": ["kind"], "max_new_tokens": 60})
    assert (stopped["text"], stopped["meta_info"]["finish_reason"]) == ('{"', {"type": "stop", "matched": "kind"})


async def test_the_end_token_ends_it_also_where_it_is_to_be_ignored(http: httpx.AsyncClient) -> None:
    answer = await generate(http, {"regex": "ab", "ignore_eos": True, "min_new_tokens": 9, "max_new_tokens": 20})
    assert (answer["text"], answer["meta_info"]["completion_tokens"]) == ("ab", 3)


async def test_a_stream_holds_it_too(http: httpx.AsyncClient) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"regex": "(ab){3}"}, "stream": True}
    async with http.stream("POST", "/generate", json=body) as response:
        lines = [line[6:] async for line in response.aiter_lines() if line.startswith("data: {")]
    texts = [json.loads(line)["text"] for line in lines]
    assert texts[-1] == "ababab"
    assert all("ababab".startswith(text) for text in texts)


async def test_what_the_vocabulary_cannot_spell_is_aborted(http: httpx.AsyncClient, served: Any) -> None:
    answer = await generate(http, {"regex": "ab\u2603"})  # no snow man in the tiny vocabulary
    assert answer["text"] == "ab"
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert "vocabulary" in answer["meta_info"]["finish_reason"]["message"]
    assert (await generate(http, {"max_new_tokens": 3, "ignore_eos": True}))["meta_info"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"json_schema": "{"}, "json_schema at #: not JSON: Expecting property name"),
        ({"json_schema": {"type": "object"}}, "json_schema must be a text, got dict"),
        (
            {"json_schema": '{"properties": {"a": {"type": "strin"}}}'},
            "json_schema at #/properties/a/type: 'strin' is not valid",
        ),
        (
            {"json_schema": '{"items": {"type": "array", "uniqueItems": true}}'},
            "json_schema at #/items: uniqueItems cannot be held to while sampling",
        ),
        ({"json_schema": '{"type": "string", "format": "colour"}'}, "at #/format: string format 'colour' is not known"),
        ({"json_schema": '{"$ref": "#/$defs/none"}'}, "json_schema: "),
        ({"regex": "[a-z"}, "regex: Regex parsing error at position 5: Unclosed '['"),
        ({"ebnf": "root ::= other"}, "ebnf: EBNF parser error at line 1, column"),
        ({"structural_tag": '{"type": "structural_tag", "format": {"type": "no"}}'}, "structural_tag: "),
        (
            {"structural_tag": '{"format": {"content": {"json_schema": {"not": {}}}}}'},
            "structural_tag at #/format/content/json_schema: not cannot be held to",
        ),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "only one of json_schema, regex, ebnf, structural_tag can be set"),
        ({"regex": "a" * 70_000}, "regex has 70000 characters; at most 65536 are taken"),
    ],
)
async def test_a_bad_constraint_is_refused_with_its_place(
    http: httpx.AsyncClient, params: dict[str, Any], message: str
) -> None:
    response = await http.post("/generate", json={"input_ids": PROMPT, "sampling_params": params})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_schemas_nested_without_end_are_refused(http: httpx.AsyncClient) -> None:
    for depth in (100, 20_000):
        text = '{"items": ' * depth + "{}" + "}" * depth
        response = await http.post("/generate", json={"input_ids": PROMPT, "sampling_params": {"json_schema": text}})
        assert response.status_code == 400
        assert "json_schema" in response.json()["error"]["message"]


def patterns(number: int) -> list[Constraint]:
    return [Constraint(ConstraintKind.REGEX, f"[a-z]{{{index + 1}}}") for index in range(number)]


async def test_compiled_grammars_are_kept_within_a_bound(model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    unbounded = Grammars(tokenizer, 100, [tiny.EOS_ID])
    held = await unbounded.prepare(patterns(8))
    again = await unbounded.prepare(patterns(8))
    assert all(again[key] is value for key, value in held.items())
    limit = unbounded.num_bytes // 2
    bounded = Grammars(tokenizer, 100, [tiny.EOS_ID], cache_bytes=limit)
    await bounded.prepare(patterns(8))
    assert 0 < bounded.num_bytes <= limit


async def test_requests_that_come_together_compile_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Constraint] = []
    real = grammars._compile

    def counting(compiler: Any, constraint: Constraint) -> Any:
        compiled.append(constraint)
        return real(compiler, constraint)

    monkeypatch.setattr(grammars, "_compile", counting)
    one = Grammars(Tokenizer.from_file(str(model / "tokenizer.json")), 100, [tiny.EOS_ID])
    await asyncio.gather(*(one.prepare(patterns(2)) for _ in range(8)))
    assert sorted(compiled, key=lambda item: item.text) == sorted(patterns(2), key=lambda item: item.text)


async def test_a_model_without_an_end_takes_none(model: Path) -> None:
    endless = Grammars(Tokenizer.from_file(str(model / "tokenizer.json")), 100, [])
    with pytest.raises(RequestError, match="has no end token"):
        await endless.prepare(patterns(1))


async def test_masks_follow_the_vocabulary_of_smollm2() -> None:
    """Tokens of several characters, split anywhere, and a multi-byte character split within."""
    try:
        source = smollm2.find_gguf()
    except ModelError as error:
        pytest.skip(str(error))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).backend_tokenizer
    size = tokenizer.get_vocab_size()
    schema = {"type": "object", "properties": {"word": {"const": "na\u00efve \u2603"}}, "required": ["word"]}
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    compiled = (await Grammars(tokenizer, size, [2]).prepare([constraint]))[constraint]
    text = json.dumps({"word": "na\u00efve \u2603"}, ensure_ascii=False)
    by_words = tokenizer.encode(text, add_special_tokens=False).ids
    by_letters = [token for letter in text for token in tokenizer.encode(letter, add_special_tokens=False).ids]
    for ids in (by_words, by_letters):
        matcher = GrammarMatcher(compiled, size)
        for token in [*ids, 2]:
            allowed = matcher.allowed()
            assert allowed is not None and allowed[token] and (token == 2 or not allowed[2])
            assert matcher.accept(token)
        assert matcher.is_terminated
    assert len(by_letters) > len(by_words)


_WHOLE = {"type": "integer", "minimum": 0, "maximum": 3}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string", "format": []}, "at #/format: "),
        ({"type": "string", "format": {}}, "at #/format: "),
        ({"allOf": [_WHOLE, {"enum": [1]}]}, "at #: more than one schema in allOf"),
        ({"type": "object", "anyOf": [{"type": "object"}]}, "at #: type beside anyOf"),
        ({"$ref": "#/$defs/x", "required": ["b"], "$defs": {"x": {"type": "object"}}}, "at #: required beside $ref"),
        ({"type": "integer", "enum": ["a", 1]}, "at #: type beside enum"),
        ({"type": "array", "items": {"type": "string", "const": 1}}, "at #/items: type beside const"),
        ({"type": "string", "enum": ["a"], "pattern": "^b$"}, "at #: pattern, type beside enum"),
        ({"type": "object", "required": ["zz"]}, "at #: required zz"),
        ({"minimum": 5}, "at #: minimum without a type"),
        ({"type": "object", "properties": {"a": {"pattern": "a"}}}, "at #/properties/a: pattern without a type"),
        ({"$ref": "http://x/y"}, "at #: $ref 'http://x/y'"),
        ({"$ref": "#foo"}, "at #: $ref '#foo'"),
        ({"type": "string", "pattern": "^(?!a).$"}, "at #: looking ahead"),
        ({"type": "object", "properties": {"a": _WHOLE}, "patternProperties": {"^a": _WHOLE}}, "at #: patternProp"),
        ({"type": "object", "additionalProperties": _WHOLE, "minProperties": 2}, "at #: minProperties beside"),
    ],
)
def test_what_xgrammar_would_pass_over_is_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(JsonSchemaError) as error:
        check_json_schema(schema)
    assert str(error.value).startswith(place)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/x", "description": "of pydantic", "$defs": {"x": _WHOLE}},
        {"anyOf": [_WHOLE, {"type": "null"}], "default": None, "title": "Maybe"},
        {"allOf": [{"$ref": "#/$defs/x"}], "default": 1, "$defs": {"x": {"type": "string", "enum": ["a", "b"]}}},
        {"type": "string", "const": "a"},
        {"type": ["string", "null"], "enum": ["a", None]},
        {"type": "object", "properties": {"a": _WHOLE, "b": _WHOLE}, "minProperties": 2, "required": ["a"]},
        {"type": "object", "additionalProperties": _WHOLE, "propertyNames": {"pattern": "^[ab]$"}},
        {"type": "object", "patternProperties": {"^a": _WHOLE}, "additionalProperties": False},
        {"type": "string", "pattern": r"^[(?=]\(?a$"},
    ],
)
async def test_what_is_taken_is_held_to(model: Path, schema: Any) -> None:
    """Random ways through the grammar, all of them valid."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))
    compiled = (await Grammars(tokenizer, vocab_size, [tiny.EOS_ID]).prepare([constraint]))[constraint]
    chance, num_ended = random.Random(0), 0
    for _ in range(40):
        matcher, ids = GrammarMatcher(compiled, vocab_size), list[int]()
        while len(ids) < 120 and not matcher.is_terminated:
            allowed = matcher.allowed()
            assert allowed is not None
            options = allowed.nonzero().flatten().tolist()
            token = tiny.EOS_ID if tiny.EOS_ID in options else chance.choice(options)
            assert matcher.accept(token)
            ids.append(token)
        if matcher.is_terminated:
            num_ended += 1
            jsonschema.validate(json.loads(tokenizer.decode(ids[:-1])), schema)
    assert num_ended
