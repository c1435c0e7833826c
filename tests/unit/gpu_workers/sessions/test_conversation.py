from pathlib import Path
from typing import Any

import pytest

from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.conversation import Conversation, ConversationError, Node, Place
from gpu_workers.sessions.formats import ToolFormat
from gpu_workers.sessions.records import CallMade, Choice, Said, Turn, spans_of

USER, MORE = Said("user", "2+3?"), Said("user", "So?")
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "calc", "description": "", "parameters": {}}}]


@pytest.fixture
def conversation(tiny_model: Path) -> Conversation:
    return Conversation(ChatTemplate(tiny_model), ToolFormat.HERMES)


def answer(ids: list[int], reply: Said, finish: str = "stop") -> Choice:
    return Choice(ids, [-0.5] * len(ids), [(1, 0, len(ids))], finish, reply, reply.content)


def add(conversation: Conversation, place: Place, number: int, *choices: Choice) -> list[Node]:
    parent = -1 if place.node is None else place.node.index
    return conversation.add(Turn(number, parent, place.pieces, list(choices), PolicyRef(version=1)))


def text(conversation: Conversation, ids: list[int]) -> str:
    return "".join(conversation.template.token_texts(ids))


def test_a_longer_conversation_keeps_the_ids_and_adds_a_suffix(conversation: Conversation) -> None:
    first = conversation.locate([USER], ())
    eos = conversation.template.eos_id
    add(conversation, first, 0, answer([7, 7, eos], Said("assistant", "Five")))
    second = conversation.locate([USER, Said("assistant", " Five\n"), MORE], ())
    assert second.num_reused == len(first.ids) + 3
    assert second.ids[: second.num_reused] == [*first.ids, 7, 7, eos]
    assert text(conversation, second.ids[second.num_reused :]) == (
        "\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_edited_answer_is_read_and_not_learnt(conversation: Conversation) -> None:
    eos = conversation.template.eos_id
    add(conversation, conversation.locate([USER], ()), 0, answer([7, eos], Said("assistant", "Five")))
    place = conversation.locate([USER, Said("assistant", "Six <|im_end|>"), MORE], ())
    assert [len(piece.said) for piece in place.pieces] == [1, 1]
    assert text(conversation, place.pieces[0].ids) == "Six < |im_end|><|im_end|>"
    (node,) = add(conversation, place, 1, answer([9, eos], Said("assistant", "Ok")))
    session = conversation.tokens_of(node)
    assert session.ids == [*place.ids, 9, eos]
    assert session.mask == [0] * len(place.ids) + [1, 1]
    assert [(turn.role, turn.finish_reason) for turn in session.turns] == [
        ("user", ""), ("assistant", ""), ("user", ""), ("assistant", "stop"),
    ]  # fmt: skip


def test_a_call_is_known_by_its_id_whatever_style_its_arguments_have(conversation: Conversation) -> None:
    eos = conversation.template.eos_id
    call = CallMade("c1", "calc", '{"a": 1, "b": [2]}')
    add(conversation, conversation.locate([USER], TOOLS), 0, answer([7, eos], Said("assistant", "", (call,))))
    styled = Said("assistant", "", (CallMade("c1", "calc", '{ "b":[2],"a":1 }'),))
    result = Said("tool", "5", (), "c1")
    assert conversation.locate([USER, styled, result], TOOLS).num_reused > 0
    other = Said("assistant", "", (CallMade("c1", "calc", '{"a": 2}'),))
    edited = conversation.locate([USER, other, result], TOOLS)
    assert '{"name": "calc", "arguments": {"a": 2}}' in text(conversation, edited.pieces[0].ids)


def test_other_tools_are_another_prompt(conversation: Conversation) -> None:
    eos = conversation.template.eos_id
    place = conversation.locate([USER], TOOLS)
    assert '"calc"' in text(conversation, place.ids)  # this template writes none itself: the system message does
    add(conversation, place, 0, answer([7, eos], Said("assistant", "Five")))
    again = [USER, Said("assistant", "Five"), MORE]
    assert conversation.locate(again, TOOLS).num_reused > 0
    assert conversation.locate(again, ()).num_reused == 0


def test_alike_branches_are_told_apart_by_how_far_they_go(conversation: Conversation) -> None:
    eos = conversation.template.eos_id
    same = Said("assistant", "Five")
    add(conversation, conversation.locate([USER], ()), 0, answer([7, eos], same), answer([8, eos], same))
    older = conversation.nodes[1]
    deep = conversation.locate([USER, same, MORE], ())
    assert deep.node is conversation.nodes[2]  # alike in all: the newest
    place = Place(older, deep.pieces, [*older.path()[0].ids, 7, eos, *deep.pieces[0].ids])
    add(conversation, place, 1, answer([9, eos], Said("assistant", "Ok")))
    further = conversation.locate([USER, same, MORE, Said("assistant", "Ok"), Said("user", "And?")], ())
    assert further.node is conversation.nodes[-1]  # the one that goes further
    assert further.node.path()[1] is older


def test_the_same_observed_piece_of_two_requests_is_one_node(conversation: Conversation) -> None:
    eos = conversation.template.eos_id
    one, two = conversation.locate([USER], ()), conversation.locate([USER], ())
    add(conversation, one, 1, answer([7, eos], Said("assistant", "a")))
    add(conversation, two, 0, answer([8, eos], Said("assistant", "b")))
    assert conversation.num_tokens == len(one.ids) + 4
    leaves = conversation.branches()
    assert [leaf.turn for leaf in leaves] == [1, 0]  # the newest by arrival first, whichever ended first


def test_a_truncated_turn_is_closed_by_a_token_that_nobody_sampled(conversation: Conversation) -> None:
    place = conversation.locate([USER], ())
    add(conversation, place, 0, answer([7], Said("assistant", "Fi"), "length"))
    after = conversation.locate([USER, Said("assistant", "Fi"), MORE], ())
    (node,) = add(conversation, after, 1, answer([9], Said("assistant", "ve"), "length"))
    session = conversation.tokens_of(node)
    at = len(place.ids) + 1
    assert (session.ids[at], session.mask[at]) == (conversation.template.eos_id, 0)


@pytest.mark.parametrize(
    ("said", "index"),
    [
        ([Said("assistant", "x"), USER], 0),
        ([USER, Said("assistant", "x")], 1),
        ([USER, Said("assistant", "x"), Said("assistant", "y"), USER], 2),
        ([USER, Said("tool", "5", (), "c1")], 1),
        ([USER, Said("assistant", "", (CallMade("c1", "f", "{}"),)), USER, Said("tool", "5", (), "c2")], 3),
    ],
)
def test_what_is_no_conversation_is_refused_by_its_number(
    conversation: Conversation, said: list[Said], index: int
) -> None:
    with pytest.raises(ConversationError) as caught:
        conversation.locate(said, ())
    assert caught.value.index == index
    assert conversation.nodes == []


def test_spans_are_runs_of_equal_versions() -> None:
    assert spans_of([3, 3, 4, 3]) == [(3, 0, 2), (4, 2, 3), (3, 3, 4)]
    assert spans_of([]) == []
