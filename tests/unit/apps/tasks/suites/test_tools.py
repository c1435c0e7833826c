"""Tools and MCP servers of a user's suite: which declarations become tools, and what is refused with its place."""

import json
from typing import Any

import pytest

from apps.tasks.suites.errors import SuiteError
from apps.tasks.suites.jsonl import parse_suite
from gpu_workers.contracts.tasks import TaskBundle

CART = '''
from gpu_workers.tools import Tool

class AddToCart(Tool):
    """Puts an article into the cart."""

    def call(self, article: str, count: int = 1) -> dict:
        return {}

class Peek(Tool):
    def call(self) -> str:
        return ""
'''
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
SERVER = {"name": "notes", "source": "print('x')"}
OF_SERVER = {"name": "notes.read", "server": "notes", "parameters": SCHEMA}
HEADER = {"slug": "s", "title": "S", "verifier": {"kind": "exact"}}


def parse(files: dict[str, str] | None = None, line: dict[str, Any] | None = None, **header: Any) -> TaskBundle:
    row = {"key": "a", "split": "heldout", "prompt": "?", "expected": "x", **(line or {})}
    _, [(_, task)] = parse_suite({**HEADER, **header}, [json.dumps(row)], files)
    return task


def test_a_source_without_a_name_declares_all_its_tools():
    tools = parse(tools=[{"source": CART}, {"name": "shell"}]).tools
    assert [tool.name for tool in tools] == ["add_to_cart", "peek", "shell"]
    assert tools[0].description == "Puts an article into the cart."
    assert tools[0].parameters["required"] == ["article"] and tools[0].source == CART
    assert list(tools[2].parameters["properties"]) == ["command"], "people see what the policy may write"


def test_a_name_picks_one_and_may_describe_it_anew():
    [tool] = parse(
        tools=[{"name": "add_to_cart", "file": "cart.py", "description": "Buy."}], files={"cart.py": CART}
    ).tools
    assert (tool.name, tool.description, tool.source) == ("add_to_cart", "Buy.", CART)
    assert list(tool.parameters["properties"]) == ["article", "count"]


def test_a_function_is_declared_with_name_and_parameters():
    source = "def call(arguments): return arguments['q']"
    [tool] = parse(tools=[{"name": "find", "source": source, "parameters": SCHEMA}]).tools
    assert (tool.name, tool.parameters) == ("find", SCHEMA)


def test_a_line_has_tools_of_its_own_and_only_its_servers():
    header = {"tools": [OF_SERVER], "tool_servers": [SERVER]}
    task = parse(**header)
    assert [server.name for server in task.tool_servers] == ["notes"] and task.tools[0].server == "notes"
    task = parse(**header, line={"tools": [{"name": "shell"}]})
    assert task.tool_servers == [] and [tool.name for tool in task.tools] == ["shell"]


@pytest.mark.parametrize(
    ("header", "field", "message"),
    [
        ({"tools": [{"source": "def call(a): pass"}]}, "tools[0].name", "is needed"),
        ({"tools": [{"source": "import os\ndef f(:"}]}, "tools[0].source", "line 2: does not compile"),
        ({"tools": [{"source": "import os"}]}, "tools[0].source", "must define call"),
        ({"tools": [{"source": CART.replace("article: str", "article")}]}, "tools[0].source",
         "line 7: AddToCart.call: argument 'article' has no annotation"),
        ({"tools": [{"name": "buy", "source": CART}]}, "tools[0].name", "no tool 'buy', only add_to_cart, peek"),
        ({"tools": [{"file": "cart.py"}]}, "tools[0].file", "no file 'cart.py' was sent as tool_files"),
        ({"tools": [{"file": "x", "source": CART}]}, "tools[0].file", "not both"),
        ({"tools": [{"name": "shell"}, {"name": "shell"}]}, "tools[1].name", "is there already"),
        ({"tools": [{"name": "peek", "source": CART}, {"source": CART}]}, "tools[1].name", "is there already"),
        ({"tools": [{"name": "find", "source": "def call(a): pass", "parameters": {"type": 5}}]}, "tools[0].parameters",
         "is not a JSON schema"),
        ({"tools": [OF_SERVER]}, "tools[0].server", "declares no server 'notes'"),
        ({"tools": [{**OF_SERVER, "name": "read"}], "tool_servers": [SERVER]}, "tools[0].name", "named notes.<tool>"),
        ({"tools": [OF_SERVER], "tool_servers": [{"name": "notes"}]}, "tool_servers[0].command", "needs a command"),
        ({"tools": [OF_SERVER], "tool_servers": [SERVER, SERVER]}, "tool_servers[1].name", "no other server's"),
        ({"tools": [OF_SERVER], "tool_servers": [{"name": "notes", "source": "a = 1\nb ="}]}, "tool_servers[0].source",
         "line 2: does not compile"),
        ({"tool_servers": [{"name": "n", "command": ["x"], "port": 1}]}, "tool_servers[0]", "unknown field"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_tool_is_refused_with_its_place(header, field, message):
    with pytest.raises(SuiteError) as caught:
        parse(**header)
    assert any(field in p.field and message in p.message for p in caught.value.errors), str(caught.value)
    assert all(problem.line == 0 for problem in caught.value.errors)


def test_a_lines_own_problem_names_its_line():
    with pytest.raises(SuiteError) as caught:
        parse(line={"tools": [{"name": "browse"}]})
    assert [(p.line, p.field) for p in caught.value.errors] == [(1, "tools[0].source")]
