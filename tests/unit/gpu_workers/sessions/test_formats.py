import pytest

from gpu_workers.sessions.formats import (
    FoundCall,
    ToolFormat,
    guess_format,
    plain_length,
    read_calls,
    tool_instructions,
    write_calls,
)

CALC = {"calc": {"type": "object", "properties": {"a": {}, "b": {}}}}
ONE = FoundCall("calc", {"a": 1, "b": "x"})
PLAIN = '{"name": "calc", "arguments": {"a": 1}}'
TWO = FoundCall("lookup", {"q": ["ä", {"k": None}], "deep": {"t": True}})


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("calls", [[ONE], [ONE, TWO]])
def test_what_is_written_is_read_again(form: ToolFormat, calls: list[FoundCall]) -> None:
    marker, text = write_calls(calls, form)
    reading = read_calls(marker + text, form, CALC)
    assert reading.calls == tuple(calls)
    assert (reading.content, reading.error) == ("", "")


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        (
            ToolFormat.HERMES,
            'Let me.\n<tool_call>{"name": "calc", "arguments": {"a": 1}}</tool_call>\nSo.',
            "Let me.\nSo.",
        ),
        (ToolFormat.HERMES, '<tool_call>\n{"name": "calc", "arguments": {"a": 1}}\n</tool_call>', ""),
        (ToolFormat.LLAMA, '{"name": "calc", "parameters": {"a": 1}}', ""),
        (ToolFormat.LLAMA, '{"type": "function", "name": "calc", "parameters": {"a": 1}}', ""),
        (ToolFormat.LLAMA, 'Hm. <|python_tag|>{"name": "calc", "arguments": {"a": 1}}', "Hm."),
        (ToolFormat.MISTRAL, 'Hm.[TOOL_CALLS] [{"name": "calc", "arguments": {"a": 1}, "id": "123456789"}]', "Hm."),
        (ToolFormat.MISTRAL, '[TOOL_CALLS]calc{"a": 1}', ""),
        (ToolFormat.MISTRAL, '[TOOL_CALLS]calc[ARGS]{"a": 1}', ""),
        (ToolFormat.PYTHON, "calc(1)", ""),
        (ToolFormat.PYTHON, "```python\ncalc(a=1)\n```", ""),
        (ToolFormat.PYTHON, "[calc(a=1)]", ""),
        (ToolFormat.JSON, '{"name": "calc", "arguments": {"a": 1}}', ""),
        (ToolFormat.JSON, '[{"name": "calc", "arguments": {"a": 1}}]', ""),
        (ToolFormat.JSON, '```json\n{"name": "calc", "arguments": {"a": 1}}\n```', ""),
    ],
)
def test_each_familys_way_of_writing(form: ToolFormat, text: str, content: str) -> None:
    reading = read_calls(text, form, CALC)
    assert reading.calls == (FoundCall("calc", {"a": 1}),)
    assert reading.content == content


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (ToolFormat.HERMES, '<tool_call>{"name": "calc", "arguments": {"a": 1}'),
        (ToolFormat.HERMES, '<tool_call>{"name": "calc"}</tool_call></tool_call>'),
        (ToolFormat.HERMES, '<tool_call>{"name": "calc", "arguments": {"a": 1, "a": 2}}</tool_call>'),
        (ToolFormat.HERMES, '<tool_call>{"name": "calc", "arguments": {"a": NaN}}</tool_call>'),
        (ToolFormat.HERMES, "Well <tool_c"),
        (ToolFormat.LLAMA, '{"name": "calc", "parameters": {"a": 1}} and more'),
        (ToolFormat.LLAMA, '{"name": "calc", "parameters"'),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]"),
        (ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "calc", "arguments": "x"}]'),
        (ToolFormat.MISTRAL, "[TOOL_CALLS]calc{"),
        (ToolFormat.PYTHON, "calc(a=1"),
        (ToolFormat.PYTHON, "calc(a=1, a=2)"),
        (ToolFormat.PYTHON, "calc(1, 2, 3)"),
        (ToolFormat.PYTHON, "calc(a=open('x'))"),
        (ToolFormat.JSON, '{"name": "calc", "arguments": {}} x'),
        (ToolFormat.JSON, '[{"name": "calc"'),
    ],
)
def test_half_a_call_is_content_and_says_why(form: ToolFormat, text: str) -> None:
    reading = read_calls(text, form, CALC)
    assert reading.calls == ()
    assert reading.content == text
    assert reading.error


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize(
    "text", ["", "Five.", "a < b", "The calculator says [5].", "5 > 3 {ok}", "sum (of all) is 12", "é🙂"]
)
def test_plain_text_is_no_call(form: ToolFormat, text: str) -> None:
    reading = read_calls(text, form, CALC)
    assert (reading.content, reading.calls, reading.error) == (text, (), "")


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("before", ["", "Let me see. "])
def test_a_stream_never_sends_what_a_call_takes_back(form: ToolFormat, before: str) -> None:
    """Character by character: what was plain once stays the beginning of the content."""
    marker, text = write_calls([ONE, TWO], form)
    whole = (before if form in (ToolFormat.HERMES, ToolFormat.MISTRAL) else "") + marker + text
    content = read_calls(whole, form, CALC).content
    for stop in range(len(whole) + 1):
        sent = whole[: plain_length(whole[:stop], form)].rstrip()
        assert content.startswith(sent)
    plain = "Five, and that is all."
    lengths = [plain_length(plain[:stop], form) for stop in range(len(plain) + 1)]
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(plain)


def test_an_unknown_tool_is_found_by_name_but_not_by_position() -> None:
    assert read_calls("rm(path='x')", ToolFormat.PYTHON, CALC).calls == (FoundCall("rm", {"path": "x"}),)
    assert read_calls("rm('x')", ToolFormat.PYTHON, CALC).error


def test_a_template_says_its_format() -> None:
    assert guess_format("… <tool_call> …") is ToolFormat.HERMES
    assert guess_format("… [TOOL_CALLS] …") is ToolFormat.MISTRAL
    assert guess_format("… <|python_tag|> …") is ToolFormat.LLAMA
    assert guess_format("nothing") is ToolFormat.HERMES


@pytest.mark.parametrize("form", ToolFormat)
def test_instructions_name_every_function_and_show_a_call(form: ToolFormat) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("calc", "lookup")]
    text = tool_instructions(tools, form)
    assert '"calc"' in text
    assert '"lookup"' in text
    assert read_calls(text.rpartition("nothing but\n")[2], form, {}).calls == (
        FoundCall("name", {"argument": "value"}),
    )
