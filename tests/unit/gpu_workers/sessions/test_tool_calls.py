import pytest

from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.sessions.tool_calls import TurnKind, read_turn

TOOLS = [ToolSpec(name="calc"), ToolSpec(name="lookup")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('calc(expression="3*4")', TurnKind.CALL),
        ('```python\ncalc(expression="3*4")\n```', TurnKind.CALL),
        ("search(q=1)", TurnKind.CALL),  # unknown: the tool box refuses it by name
        ("Answer: 12", TurnKind.ANSWER),
        ("12", TurnKind.ANSWER),
        ("", TurnKind.ANSWER),
        ("The calculator calc(x) says 12", TurnKind.ANSWER),
        ("sum (of all) is 12", TurnKind.ANSWER),
        ('calc(expression="3*4"', TurnKind.MALFORMED),
        ('calc(expression="3*4") = 12', TurnKind.MALFORMED),
        ('calc(expression="3*4")\nAnswer: 12', TurnKind.MALFORMED),
        ('calc(expression="1")\ncalc(expression="2")', TurnKind.MALFORMED),
        ("calc(a=1, a=1)", TurnKind.MALFORMED),
        ("other(x=y)", TurnKind.MALFORMED),
    ],
)
def test_python_turns(text: str, kind: TurnKind) -> None:
    turn = read_turn(text, TOOLS, "python")
    assert turn.kind is kind
    assert (turn.call is not None) == (kind is TurnKind.CALL)
    assert bool(turn.error) == (kind is TurnKind.MALFORMED)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('<tool_call>{"name": "calc", "arguments": {"expression": "1"}}</tool_call>', TurnKind.CALL),
        ('{"name": "calc", "arguments": {}}', TurnKind.CALL),
        ('<tool_call>{"name": "calc", "arguments": }</tool_call>', TurnKind.MALFORMED),
        ('<tool_call>{"name": "calc"', TurnKind.MALFORMED),
        ('{"answer": 12}', TurnKind.ANSWER),
        ("12", TurnKind.ANSWER),
    ],
)
def test_json_turns(text: str, kind: TurnKind) -> None:
    assert read_turn(text, TOOLS, "json").kind is kind


def test_without_tools_every_turn_is_an_answer() -> None:
    assert read_turn('calc(expression="1")', [], "python").kind is TurnKind.ANSWER
