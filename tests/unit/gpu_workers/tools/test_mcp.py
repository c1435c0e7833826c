"""MCP servers in a real sandbox: the protocol, what they keep, and how they fail."""

import msgspec
import pytest

from gpu_workers.contracts.enums import Boundary, ToolOutcome
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, ToolServer, ToolSpec
from gpu_workers.tools.declared import ToolError, load_tools
from gpu_workers.tools.mcp import McpSession, tool_specs
from gpu_workers.tools.toolbox import ToolBox
from tests.unit.gpu_workers.tools.mcp_servers import MODERN_SERVER, SERVER, changed

LIMITS = Limits(tool_timeout_seconds=8, cpu_seconds=4, memory_bytes=256 * 2**20, output_bytes=8000, num_processes=32)
NOTES = ToolServer(name="notes", source=SERVER)
SHELL = ToolSpec(name="shell")


@pytest.fixture
async def start(backend):
    """Makes a sandbox, with the contract's files."""
    sandboxes = []

    async def make(limits=LIMITS, **files):
        sandbox = backend.create(EnvironmentContract(limits=limits, files=files))
        sandboxes.append(sandbox)
        await sandbox.start()
        return sandbox

    yield make
    for sandbox in sandboxes:
        await sandbox.close()


async def listed(sandbox, server=NOTES):
    """Server with the settled revision, and its tools as a task declares them."""
    protocol, tools = await McpSession(sandbox, server, []).list_tools()
    return protocol, tool_specs(server, tools)


@pytest.fixture
async def open_box(start):
    async def make(server=NOTES, specs=None, **options):
        if specs is None:
            _, specs = await listed(await start(), NOTES)
        return ToolBox(await start(**options), [*specs, SHELL], LIMITS.output_bytes, servers=[server])

    return make


@pytest.mark.parametrize(
    ("source", "protocol", "settled"),
    [
        (SERVER, "", "2025-11-25"),
        (SERVER, "2024-11-05", "2024-11-05"),
        (changed('"2026-07-28", ["2025-11-25", ', '"2026-07-28", ['), "", "2025-06-18"),
        (MODERN_SERVER, "", "2026-07-28"),
        (MODERN_SERVER, "2026-07-28", "2026-07-28"),
    ],
)
async def test_the_newest_common_revision_is_settled(start, source, protocol, settled):
    found, specs = await listed(await start(), ToolServer(name="notes", source=source, protocol=protocol))
    assert found == settled
    assert [spec.name for spec in specs] == ["notes.remember", "notes.recall_all"], "both pages, callable names"
    assert specs[0].parameters["required"] == ["key", "note"] and specs[0].description == "Keeps a note."


@pytest.mark.parametrize("source", [SERVER, MODERN_SERVER])
async def test_a_server_keeps_its_memory_for_the_episode(open_box, source):
    box = await open_box(ToolServer(name="notes", source=source))
    first = await box.call("notes.remember", {"key": "a", "note": "x"})
    assert (first.result, first.ok, first.outcome) == ("1 notes", True, ToolOutcome.RAN)
    await box.call("shell", {"command": "kill -9 -1; pkill python3; true"})
    assert (await box.call("notes.remember", {"key": "b", "note": "y"})).result == "2 notes"
    assert (await box.call("notes.recall_all", {})).result == '{"a": "x", "b": "y"}'


async def test_a_program_of_the_sandbox_can_be_a_server(start):
    sandbox = await start(**{"server.py": SERVER})
    server = ToolServer(name="notes", command=["/usr/bin/python3", "server.py"])
    _, specs = await listed(sandbox, server)
    assert len(specs) == 2


async def test_the_policy_cannot_slip_code_into_a_server(open_box, start):
    source = changed("import json\n", "import colorsys, json\n")
    box = await open_box(ToolServer(name="notes", source=source))
    await box.call("shell", {"command": "echo 'raise SystemExit(1)' | tee json.py colorsys.py > /dev/null"})
    assert (await box.call("notes.remember", {"key": "a", "note": "x"})).result == "1 notes"

    _, specs = await listed(await start())
    server = ToolServer(name="notes", command=["/usr/bin/python3", "server.py"])
    sandbox = await start(**{"server.py": SERVER})
    box = ToolBox(sandbox, [*specs, SHELL], servers=[server])
    await box.set_up()
    await box.call("shell", {"command": "echo 'raise SystemExit(1)' > server.py"})
    assert (await box.call("notes.remember", {"key": "a", "note": "x"})).result == "1 notes"


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("notes.remember", {"key": "a"}, "argument 'note' is missing"),
        ("notes.remember", {"key": 1, "note": "x"}, "argument 'key': 1 is not of type 'string'"),
        ("notes.remember", {"key": "a", "note": "x", "z": 1}, "unknown argument 'z'"),
        ("notes.forget", {}, "unknown tool 'notes.forget'; the tools are notes.remember, notes.recall_all, shell"),
    ],
)
async def test_calls_are_checked_before_they_reach_it(open_box, name, arguments, error):
    call = await (await open_box()).call(name, arguments)
    assert call.invalid and call.outcome is ToolOutcome.REFUSED and error in call.error


async def test_an_error_of_the_tool_is_an_observation(open_box):
    box = await open_box()
    call = await box.call("notes.remember", {"key": "forbidden", "note": "x"})
    assert not call.ok and call.result == "Error: that key is not allowed"
    assert (await box.call("notes.remember", {"key": "a", "note": "x"})).ok


@pytest.mark.parametrize(
    ("new", "error"),
    [
        ("raise LookupError('luck')", "error -32601: no luck"),
        ("sys.exit(3)", "the server has ended"),
        ("raise ValueError('x')", "the server has ended"),
        ("return 5", "has no result"),
        ("return {'resultType': 'input_required'}", "asks for further input"),
        ("print('x' * 9_000_000); return text('')", "a message of more than"),
        ("[print('noise') for _ in range(2000)]; return text('')", "no JSON-RPC message"),
    ],
)
async def test_a_server_that_fails_in_a_call_is_an_observation(open_box, new, error):
    source = changed('    if name == "remember":\n', f'    if name == "remember":\n        {new}\n')
    box = await open_box(ToolServer(name="notes", source=source))
    call = await box.call("notes.remember", {"key": "a", "note": "x"})
    assert not call.ok and not call.invalid and error in call.error, call
    assert (await box.call("shell", {"command": "echo fine"})).result == "fine\n"


async def test_text_that_is_no_message_and_requests_of_the_server_are_answered(open_box):
    chatter = (
        "print('Loading…'); print('{\"a\": '); send({'method': 'notifications/message', 'params': {}})\n"
        "        send({'id': 'p', 'method': 'ping'}); pong = json.loads(sys.stdin.readline())\n"
        "        send({'id': 7, 'method': 'sampling/createMessage', 'params': {}})\n"
        "        no = json.loads(sys.stdin.readline())\n"
        "        return text(f\"{pong['result']} {no['error']['code']}\")\n"
    )
    source = changed('    if name == "recall-all":\n', f'    if name == "recall-all":\n        {chatter}')
    box = await open_box(ToolServer(name="notes", source=source))
    assert (await box.call("notes.recall_all", {})).result == "{} -32601"


async def test_other_content_than_text_is_named(open_box):
    items = (
        "[{'type': 'image', 'data': 'AAAA', 'mimeType': 'image/png'}, {'type': 'resource_link', 'uri': 'file:///x'},"
        " {'type': 'resource', 'resource': {'uri': 'y', 'text': 'inside'}}, 5]"
    )
    source = changed(
        '    if name == "recall-all":\n', f'    if name == "recall-all":\n        return {{"content": {items}}}\n'
    )
    box = await open_box(ToolServer(name="notes", source=source))
    result = (await box.call("notes.recall_all", {})).result
    assert result == "[image of type image/png, not shown]\n[link to file:///x]\ninside"
    source = changed("text(json.dumps(notes), structuredContent=notes)", "{'structuredContent': {'n': 1}}")
    box = await open_box(ToolServer(name="notes", source=source))
    assert (await box.call("notes.recall_all", {})).result == '{"n": 1}'


async def test_a_late_answer_is_not_taken_for_the_next_one(open_box):
    slow = "if arguments['key'] == 'slow':\n            import time; time.sleep(3)\n        "
    source = changed(
        '        if arguments["key"] == "forbidden"', "        " + slow + 'if arguments["key"] == "forbidden"'
    )
    limits = Limits(tool_timeout_seconds=2, memory_bytes=256 * 2**20)
    box = await open_box(ToolServer(name="notes", source=source), limits=limits)
    call = await box.call("notes.remember", {"key": "slow", "note": "x"})
    assert call.outcome is ToolOutcome.TIMED_OUT and not call.ok and "timed out" in call.error
    again = await box.call("notes.recall_all", {})
    assert again.result == '{"slow": "x"}', "the call went on while the server ran, its answer was not this one's"


@pytest.mark.parametrize(
    ("body", "outcomes", "limit"),
    [
        ("while True: pass", {ToolOutcome.LIMIT}, "cpu"),
        ("while True: print('x' * 65536, file=sys.stderr)", {ToolOutcome.LIMIT}, "output"),
        ("import os; os.fork(); big = b'x' * (170 << 20); import time; time.sleep(60)", {ToolOutcome.LIMIT}, "memory"),
        ("return text('x' * 1_000_000)", {ToolOutcome.RAN}, ""),
        ("import os\n        while True: os.fork()", set(ToolOutcome), None),
    ],
)
async def test_a_server_that_takes_too_much_is_ended(open_box, body, outcomes, limit):
    source = changed('    if name == "recall-all":\n', f'    if name == "recall-all":\n        {body}\n')
    limits = msgspec.structs.replace(LIMITS, tool_timeout_seconds=30, cpu_seconds=2)
    box = await open_box(ToolServer(name="notes", source=source), limits=limits)
    call = await box.call("notes.recall_all", {})
    assert call.outcome in outcomes and (limit is None or call.limit_hit == limit), call
    assert len(call.result) <= 8200
    later = await box.call("notes.remember", {"key": "a", "note": "x"})
    assert later.ok == (call.outcome is ToolOutcome.RAN) or limit is None
    assert (await box.call("shell", {"command": "echo fine"})).result == "fine\n"


async def test_what_a_call_starts_does_not_outlive_it(open_box):
    daemon = "import subprocess; subprocess.Popen(['sleep', '77'], start_new_session=True)"
    source = changed('    if name == "recall-all":\n', f'    if name == "recall-all":\n        {daemon}\n')
    box = await open_box(ToolServer(name="notes", source=source))
    assert (await box.call("notes.recall_all", {})).ok
    left = await box.call("shell", {"command": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 7[7]'"})
    assert left.stdout == "0\n"
    assert (await box.call("notes.recall_all", {})).ok


@pytest.mark.parametrize(
    ("server", "error"),
    [
        (ToolServer(name="notes", command=["no-such-server"]), "no-such-server: not found"),
        (ToolServer(name="notes", source="raise SystemExit('no key')"), "no key"),
        (ToolServer(name="notes", source=changed("additionalProperties\": False", "additionalProperties\": True")),
         "its tool remember takes other arguments than the task declares; list its tools again"),
        (ToolServer(name="notes", source=changed('"recall-all", "desc', '"recall", "desc')),
         "it offers no tool recall_all"),
        (ToolServer(name="notes", source=changed("version = wanted if wanted in KNOWN else KNOWN[0]", "version = '1'")),
         "speaks revision 1, which is not known here"),
        (ToolServer(name="notes", source=SERVER, protocol="2026-07-28"), "does not speak revision 2026-07-28"),
        (ToolServer(name="notes", source="import time; time.sleep(60)", start_timeout_seconds=1), "timed out"),
        (ToolServer(name="notes", source=changed('more = {"nextC', 'more = {"nextCursor": "0"} if 1 else {"nextC')),
         "more than 50 pages"),
    ],
)  # fmt: skip
async def test_a_server_that_cannot_start_or_is_another_one_is_the_tasks_fault(open_box, server, error):
    box = await open_box(server)
    with pytest.raises(WorkerError) as caught:
        await box.call("notes.recall_all", {})
    assert caught.value.boundary is Boundary.ENVIRONMENT and not caught.value.retryable
    assert "MCP server 'notes'" in str(caught.value) and error in str(caught.value)


READ = ToolSpec(name="notes.remember", server="notes")


@pytest.mark.parametrize(
    ("tools", "servers", "error"),
    [
        ([READ], [ToolServer(name="notes")], "needs either a source or a command"),
        ([READ], [ToolServer(name="notes", source="x", command=["y"])], "needs either a source or a command"),
        ([READ], [ToolServer(name="my notes", source="x")], "letters, digits and _"),
        ([READ], [ToolServer(name="notes", source="a = 1\nb =")], "source, line 2: does not compile"),
        ([READ], [ToolServer(name="notes", command=["a\0"])], "no program can be given"),
        ([READ], [ToolServer(name="notes", command=["a"], start_timeout_seconds=0)], "start_timeout_seconds"),
        ([READ], [NOTES, NOTES], "declared twice"),
        ([], [NOTES], "none of its tools is declared"),
        ([ToolSpec(name="remember", server="notes")], [NOTES], "must be named notes.<tool>"),
        ([READ, READ], [NOTES], "declared twice"),
    ],
)
def test_declarations_that_cannot_work_are_refused(tools, servers, error):
    with pytest.raises(ToolError, match=error):
        load_tools(tools, servers)
