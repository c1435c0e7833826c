"""The built-in environment with tools of every kind, in a real sandbox."""

import msgspec
import pytest

from gpu_workers.contracts.enums import Boundary, ReasonCode, ToolOutcome, VerifierKind
from gpu_workers.contracts.groups import ToolCallRecord
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Message, TaskBundle, ToolServer, ToolSpec, VerifierSpec
from gpu_workers.rollout.arguments import check_call
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.verifiers.calls import parse_calls
from gpu_workers.verifiers.gate import check_task
from tests.unit.gpu_workers.tools.mcp_servers import SERVER, changed

CART = """
from gpu_workers.tools import Tool

class Buy(Tool):
    def setup(self):
        open("cart.txt", "w").write("empty\\n")

    def call(self, article: str) -> str:
        self.state[article] = self.state.get(article, 0) + 1
        return f"{article}: {self.state[article]}"
"""
NOTE = {"type": "string"}
REMEMBER = ToolSpec(name="notes.remember", server="notes", parameters={
    "type": "object", "properties": {"key": NOTE, "note": NOTE}, "required": ["key", "note"],
    "additionalProperties": False})  # fmt: skip
TOOLS = [ToolSpec(name="buy", source=CART), ToolSpec(name="shell"), ToolSpec(name="read_file"), REMEMBER]
SERVERS = [ToolServer(name="notes", source=SERVER, protocol="2025-11-25")]


async def play(environment: ToolEnvironment, *texts: str) -> list[ToolCallRecord]:
    """Steps as an episode makes them: from the text of a call."""
    await environment.reset()
    records = []
    for text in texts:
        [parsed] = parse_calls(text, "python")
        checked = check_call(parsed, TOOLS)
        assert checked.error == ""
        records.append(await environment.step(checked.name, checked.arguments))
    return records


async def test_every_kind_of_tool_shares_one_episode(backend) -> None:
    environment = ToolEnvironment(backend, EnvironmentContract(), TOOLS, servers=SERVERS)
    try:
        records = await play(
            environment, "buy('nut')", "notes.remember(key='a', note='x')", "buy('nut')",
            "shell('cat cart.txt; echo more >> cart.txt')", "notes.remember('b', 'y')", "read_file('cart.txt', 2, 1)",
        )  # fmt: skip
        results = [record.result for record in records]
        assert results == ["nut: 1", "1 notes", "nut: 2", "empty\n", "2 notes", "more\n[lines 2 to 2 of 2]"]
        assert all(record.ok and record.outcome is ToolOutcome.RAN for record in records)
        assert await environment.state() == {"cart.txt": b"empty\nmore\n"}
    finally:
        await environment.close()


async def test_reset_forgets_state_and_servers(backend) -> None:
    environment = ToolEnvironment(backend, EnvironmentContract(), TOOLS, servers=SERVERS)
    try:
        first = await play(environment, "buy('nut')", "notes.remember('a', 'x')")
        again = await play(environment, "buy('nut')", "notes.remember('a', 'x')")
        assert [r.result for r in first] == [r.result for r in again] == ["nut: 1", "1 notes"]
    finally:
        await environment.close()


async def test_records_survive_the_transcript(backend) -> None:
    environment = ToolEnvironment(backend, EnvironmentContract(), TOOLS, servers=SERVERS)
    try:
        [record] = await play(environment, "shell('echo out; echo err >&2; exit 7')")
    finally:
        await environment.close()
    stored = msgspec.json.decode(msgspec.json.encode(record), type=ToolCallRecord)
    assert stored == record
    assert (stored.stdout, stored.stderr, stored.exit_code, stored.outcome) == ("out\n", "err\n", 7, ToolOutcome.RAN)
    old = msgspec.json.decode(b'{"name": "f", "ok": false, "invalid": true}', type=ToolCallRecord)
    assert old.outcome is None


def task(**changes) -> TaskBundle:
    values = {
        "key": "k", "prompt": [Message(role="user", content="?")], "max_turns": 3,
        "tools": TOOLS, "tool_servers": SERVERS,
        "verifier": VerifierSpec(kind=VerifierKind.EXACT, expected="yes"),
        "reference": [Message(role="assistant", content="yes")], "known_bad": ["no"],
    }  # fmt: skip
    return TaskBundle(**{**values, **changes})


async def test_the_gate_tries_servers_and_setups(backend) -> None:
    assert (await check_task(task(), backend)).ok
    other = ToolServer(name="notes", source=changed('["key", "note"]', '["key"]'))
    wrong = [
        (task(tool_servers=[other]), "its tool remember takes other arguments than the task declares"),
        (task(tool_servers=[]), "the task declares no MCP server 'notes'"),
        (
            task(tools=[ToolSpec(name="buy", source=CART.replace("open(", "opem("))], tool_servers=[]),
            "setup of tool 'buy'",
        ),
        (
            task(tools=[ToolSpec(name="buy", source="def call(a):\n  return (")], tool_servers=[]),
            "line 2: does not compile",
        ),
        (task(tools=[ToolSpec(name="shell"), ToolSpec(name="shell")], tool_servers=[]), "declared twice"),
    ]
    for bundle, message in wrong:
        check = await check_task(bundle, backend)
        assert not check.ok and check.reason_code == ReasonCode.TASK_INVALID and message in check.message, check


async def test_a_server_that_is_another_one_ends_the_episode_as_the_environments_failure(backend) -> None:
    other = ToolServer(name="notes", source=changed('["key", "note"]', '["key"]'))
    environment = ToolEnvironment(backend, EnvironmentContract(), TOOLS, servers=[other])
    try:
        with pytest.raises(WorkerError) as caught:
            await play(environment, "notes.remember('a', 'x')")
        assert caught.value.boundary is Boundary.ENVIRONMENT and not caught.value.retryable
    finally:
        await environment.close()
