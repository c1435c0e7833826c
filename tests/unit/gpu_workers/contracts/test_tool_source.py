"""Reading a tool's declaration from its source: schemas from annotations, and every refusal with its line."""

from typing import Any

import pytest

from gpu_workers.contracts.tool_source import ToolSourceError, read_tools, specs_of

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def tool(call: str, body: str = "", head: str = "") -> str:
    head = f"from gpu_workers.tools import Tool\n{head}\n"
    return f"{head}class Look(Tool):\n{body}    def call({call}):\n        return ''\n"


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("str", TEXT), ("int", WHOLE), ("float", {"type": "number"}), ("bool", {"type": "boolean"}),
        ("dict", {"type": "object"}),
        ("list", {"type": "array"}), ("Any", {}), ("typing.Any", {}),
        ("list[str]", {"type": "array", "items": TEXT}), ("List[int]", {"type": "array", "items": WHOLE}),
        ("dict[str, list[int]]", {"type": "object", "additionalProperties": {"type": "array", "items": WHOLE}}),
        ("str | None", {"anyOf": [TEXT, {"type": "null"}]}), ("Optional[str]", {"anyOf": [TEXT, {"type": "null"}]}),
        ("Union[str, int, None]", {"anyOf": [TEXT, WHOLE, {"type": "null"}]}),
        ("str | int | None", {"anyOf": [TEXT, WHOLE, {"type": "null"}]}),
        ("Literal['a', 2, None]", {"enum": ["a", 2, None]}), ("typing.Literal[True]", {"enum": [True]}),
        ("Annotated[str, 'a city']", {"type": "string", "description": "a city"}),
        ("'list[str]'", {"type": "array", "items": TEXT}),
    ],
)  # fmt: skip
def test_annotations_become_schemas(annotation: str, schema: dict[str, Any]) -> None:
    [found] = read_tools(tool(f"self, x: {annotation}"))
    assert found.parameters == {
        "type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False,
    }  # fmt: skip


def test_defaults_keyword_arguments_and_extra_ones() -> None:
    [found] = read_tools(tool("self, a: str, b: int = 3, *, c: list[int], d: str = None, e: list = [], **more"))
    assert found.parameters["required"] == ["a", "c"]
    properties = found.parameters["properties"]
    assert properties["b"] == {"type": "integer", "default": 3} and properties["d"] == {
        "type": "string",
        "default": None,
    }
    assert properties["e"] == {"type": "array"}
    assert "additionalProperties" not in found.parameters


def test_names_and_descriptions() -> None:
    source = tool("self", '    """Looks around."""\n', "class Helper: pass\n") + (
        "class HTTPGetPage(Tool):\n    name = 'get'\n    description = 'Gets.'\n    parameters = {'type': 'object'}\n"
        "    def setup(self): pass\n    def call(self, **x): return ''\n"
    )
    look, get = read_tools(source)
    assert (look.name, look.description, look.class_name, look.has_setup) == ("look", "Looks around.", "Look", False)
    assert (get.name, get.description, get.parameters, get.has_setup) == ("get", "Gets.", {"type": "object"}, True)
    assert [spec.name for spec in specs_of(source, "")] == ["look", "get"]


def test_a_function_is_one_tool_without_a_schema() -> None:
    assert read_tools("def call(arguments): return ''") == []
    [spec] = specs_of("def call(arguments): return ''", "find")
    assert spec.name == "find"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("x = 1", "must define call"),
        ("def call(:", "line 1: does not compile"),
        ("\nreturn 5", "line 2: does not compile: 'return' outside function"),
        ("x = '\0'", "does not compile"),
        ("(" * 5000, "does not compile"),
        ("x = 1\n" * 100_000, "longer than"),
        (tool("self, x"), "line 4: Look.call: argument 'x' has no annotation"),
        (tool("self, x: set"), "line 4: Look.call: argument 'x': set has no JSON schema; use str, int"),
        (tool("self, x: dict[int, str]"), "dict[int, str] has no JSON schema"),
        (tool("self, x: Literal[y]"), "Literal[y] has no JSON schema"),
        (tool("self, x: 'list['"), "'list[' is not an annotation"),
        (tool("self, x: str, /"), "arguments are passed by name"),
        (tool("self, *x: str"), "arguments are passed by name"),
        (tool(""), "Look.call must take self"),
        (tool("self", "    name = 'a b'\n"), "line 3: Look.name 'a b' is not a function name"),
        (tool("self", "    name = f'{1}'\n"), "line 4: Look.name must be a literal"),
        (tool("self", "    parameters = make()\n"), "Look.parameters must be a literal"),
        (tool("self", "    parameters = []\n"), "parameters a JSON schema"),
        (tool("self").replace("def call", "async def call"), "line 4: Look.call must be a plain method"),
        (tool("self").replace("def call", "def run"), "line 3: class Look has no method call"),
        (tool("self") + tool("self"), "line 8: two tools are named 'look'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_its_line(source: str, error: str) -> None:
    with pytest.raises(ToolSourceError) as caught:
        read_tools(source)
    assert error in str(caught.value)
