"""The command line for authors of tools: what it prints, and when it fails."""

import json

import pytest

from gpu_workers.tools.__main__ import main
from tests.unit.gpu_workers.tools.mcp_servers import SERVER

CART = '''
from gpu_workers.tools import Tool

class Add(Tool):
    """Adds.

    More about it.
    """
    def setup(self):
        self.state["total"] = 10

    def call(self, n: int) -> str:
        self.state["total"] += n
        return str(self.state["total"])
'''


@pytest.fixture
def file(tmp_path, backend):  # `backend` skips where there is no sandbox
    path = tmp_path / "cart.py"
    path.write_text(CART)
    return path


async def run(*arguments):
    """`main` in a thread of its own: it has an event loop of its own too."""
    import asyncio

    return await asyncio.to_thread(main, [str(argument) for argument in arguments])


async def test_check_shows_schemas_and_runs_examples(file, capsys):
    assert await run("check", file, "--call", 'add {"n": 5}', "--call", 'add {"n": 1}') == 0
    out = capsys.readouterr().out
    assert out.startswith("add: Adds.\n") and '"required": [' in out
    assert "-> ran, " in out and "\n15\n" in out and "\n16\n" in out


@pytest.mark.parametrize("example", ['add {"n": "5"}', "add {}", "sub {}", "add {n}"])
async def test_an_example_that_fails_is_a_failure(file, capsys, example):
    assert await run("check", file, "--call", example) == 1
    assert capsys.readouterr().err.startswith("error: ")


async def test_a_file_that_is_no_tool_says_where(file, capsys):
    file.write_text(CART.replace("n: int", "n"))
    assert await run("check", file) == 1
    assert capsys.readouterr().err == "error: line 12: Add.call: argument 'n' has no annotation\n"
    assert await run("check", file.with_name("none.py")) == 1


async def test_a_setup_that_fails_is_found(file, capsys):
    file.write_text(CART.replace('["total"] = 10', '["total"] = 1 / 0'))
    assert await run("check", file) == 1
    assert "setup of tool 'add': exit code 1: ZeroDivisionError" in capsys.readouterr().err


async def test_declare_prints_what_a_header_takes(file, capsys):
    assert await run("check", file, "--declare") == 0
    [tool] = json.loads(capsys.readouterr().out)["tools"]
    assert (tool["name"], tool["source"]) == ("add", CART)


async def test_an_mcp_server_is_listed_with_its_revision(tmp_path, backend, capsys):
    path = tmp_path / "notes.py"
    path.write_text(SERVER)
    assert await run("mcp", "notes", "--source", path) == 0
    declared = json.loads(capsys.readouterr().out)
    assert declared["tool_servers"][0]["protocol"] == "2025-11-25"
    assert [tool["name"] for tool in declared["tools"]] == ["notes.remember", "notes.recall_all"]
    assert await run("mcp", "notes", "--file", path, "--call", "notes.recall_all", "--", "python3", "notes.py") == 0
    assert "\n{}\n" in capsys.readouterr().out
    assert await run("mcp", "notes", "--", "no-such-server") == 1
    assert "no-such-server: not found" in capsys.readouterr().err
