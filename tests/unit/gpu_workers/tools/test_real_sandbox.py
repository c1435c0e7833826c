"""Tools in a real sandbox: what they return, what lasts between calls, and how bad ones end."""

import pytest

from gpu_workers.contracts.enums import Boundary, ToolOutcome
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, ToolSpec
from gpu_workers.tools.toolbox import ToolBox

LIMITS = Limits(
    tool_timeout_seconds=6, cpu_seconds=1, memory_bytes=256 * 2**20, disk_bytes=4 * 2**20, output_bytes=4000,
    num_processes=32,
)  # fmt: skip
CART = '''
from typing import Literal

from gpu_workers.tools import Tool


class AddToCart(Tool):
    """Puts an article into the cart."""

    def setup(self):
        open("cart.txt", "w").close()
        self.state["total"] = 100

    def call(self, article: str, count: int = 1, unit: Literal["piece", "box"] = "piece") -> dict:
        if article == "ghost":
            raise KeyError("no such article")
        self.state["total"] += count
        with open("cart.txt", "a") as file:
            file.write(f"{count} {unit} {article}\\n")
        return {"total": self.state["total"]}


class Peek(Tool):
    def call(self) -> str:
        return repr(self.state)
'''
FREE = {"type": "object", "properties": {"n": {}}}


def function(body: str, name: str = "bad") -> ToolSpec:
    return ToolSpec(name=name, parameters=FREE, source="import os, sys, time\ndef call(arguments):\n    " + body)


@pytest.fixture
async def open_box(backend):
    """Makes a toolbox on a started sandbox."""
    sandboxes = []

    async def make(*tools, limits=LIMITS, servers=()):
        sandbox = backend.create(EnvironmentContract(files={"data/in.txt": "one\ntwo\n"}, limits=limits))
        sandboxes.append(sandbox)
        await sandbox.start()
        box = ToolBox(sandbox, list(tools), limits.output_bytes, servers=servers)
        await box.set_up()
        return box

    yield make
    for sandbox in sandboxes:
        await sandbox.close()


async def test_a_class_keeps_state_that_the_policy_cannot_see(open_box):
    box = await open_box(ToolSpec(name="add_to_cart", source=CART), ToolSpec(name="peek", source=CART), SHELL)
    first = await box.call("add_to_cart", {"article": "nut", "count": 2})
    assert (first.result, first.ok, first.outcome, first.exit_code) == ('{"total": 102}', True, ToolOutcome.RAN, 0)
    assert (await box.call("add_to_cart", {"article": "bolt", "unit": "box"})).result == '{"total": 103}'
    assert (await box.call("peek", {})).result == "{}", "state is a tool's own"
    assert (await box.call("shell", {"command": "cat cart.txt"})).result == "2 piece nut\n1 box bolt\n"
    hunt = "grep -rl AddToCart /workspace /tmp /dev/shm; cat /proc/*/environ /proc/1/mem 2>/dev/null | grep -a total"
    assert "total" not in (await box.call("shell", {"command": hunt})).stdout


async def test_what_a_class_raises_is_told_and_its_state_stays(open_box):
    box = await open_box(ToolSpec(name="add_to_cart", source=CART))
    failed = await box.call("add_to_cart", {"article": "ghost"})
    assert not failed.ok and not failed.invalid and failed.outcome is ToolOutcome.RAN
    assert failed.result == "Error: exit code 1: KeyError: 'no such article'"
    assert "Traceback" in failed.stderr
    assert (await box.call("add_to_cart", {"article": "nut"})).result == '{"total": 101}'


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "add_to_cart: argument 'article' is missing"),
        ({"article": 5}, "add_to_cart: argument 'article': 5 is not of type 'string'"),
        ({"article": "a", "unit": "crate"}, "argument 'unit': 'crate' is not one of ['piece', 'box']"),
        ({"article": "a", "size": 1}, "unknown argument 'size'; the arguments are article, count, unit"),
    ],
)
async def test_arguments_are_checked_against_the_annotations(open_box, arguments, error):
    box = await open_box(ToolSpec(name="add_to_cart", source=CART))
    call = await box.call("add_to_cart", arguments)
    assert call.invalid and call.outcome is ToolOutcome.REFUSED and error in call.error
    assert call.arguments == arguments


@pytest.mark.parametrize(
    ("returned", "result"),
    [
        ("'text'", "text"), ("{'a': [1, 'é']}", '{"a": [1, "é"]}'), ("42", "42"), ("True", "true"), ("''", ""),
        ("'a\\nb'", "a\nb"), ("'a\\0b'", "a\ufffdb"), ("'\\ud800'", "?"),
    ],
)  # fmt: skip
async def test_text_and_json_are_returned_as_they_are(open_box, returned, result):
    box = await open_box(function(f"return {returned}"))
    call = await box.call("bad", {"n": 1})
    assert call.ok and call.result == result


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return None", "TypeError: the tool returned NoneType, expected text or a dict"),
        ("return b'x'", "TypeError: the tool returned bytes"),
        ("return float('nan')", "TypeError: the tool returned a float that is not JSON"),
        ("return {'a': {1, 2}}", "TypeError: the tool returned a dict that is not JSON"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("sys.exit(3)", "exit code 3"),
        ("os._exit(5)", "exit code 5"),
        ("return undefined", "NameError"),
    ],
)
async def test_a_tool_that_fails_is_an_observation(open_box, body, error):
    box = await open_box(function(body))
    call = await box.call("bad", {"n": 1})
    assert not call.ok and not call.invalid and call.outcome is ToolOutcome.RAN
    assert error in call.error and call.result == f"Error: {call.error}"
    assert call.exit_code != 0


@pytest.mark.parametrize(
    ("body", "outcome", "limit"),
    [
        ("time.sleep(60)", ToolOutcome.TIMED_OUT, ""),
        ("while True: pass", ToolOutcome.LIMIT, "cpu"),
        ("return len([bytearray(2**20) for _ in range(2000)])", None, ""),  # MemoryError: the tool's own end
        ("os.kill(os.getpid(), 9)", ToolOutcome.SIGNAL, ""),
        ("os.kill(os.getpid(), 11)", ToolOutcome.SIGNAL, ""),
        ("open('big', 'wb').write(b'x' * 2**26)", None, "disk"),
        ("while True: os.write(2, b'x' * 65536)", ToolOutcome.LIMIT, "output"),
        ("while True: os.fork()", None, None),
    ],
)
async def test_a_tool_that_never_ends_or_takes_too_much_is_ended(open_box, body, outcome, limit):
    box = await open_box(function(body), SHELL)
    call = await box.call("bad", {"n": 1})
    assert not call.ok and not call.invalid
    assert outcome is None or call.outcome is outcome, call
    assert limit is None or call.limit_hit == limit, call
    assert len(call.stderr) <= 4000
    assert (await box.call("shell", {"command": "echo fine"})).result == "fine\n"


async def test_gigabytes_of_result_are_cut(open_box):
    box = await open_box(function("return 'x' * 2**19"))
    call = await box.call("bad", {"n": 1})
    assert call.truncated and call.ok
    assert len(call.result) < 4100 and call.result.endswith("[output cut: it is longer than the limit]")


async def test_what_a_tool_prints_is_in_the_record_not_in_the_result(open_box):
    box = await open_box(function("print('noise'); print('more', file=sys.stderr); return 'answer'"))
    call = await box.call("bad", {"n": 1})
    assert call.result == "answer" and sorted(call.stderr.split()) == ["more", "noise"] and call.stdout == ""


async def test_a_setup_that_fails_is_the_tasks_fault(open_box):
    source = CART.replace('self.state["total"] = 100', "raise OSError('no table')")
    with pytest.raises(WorkerError, match="setup of tool 'add_to_cart': exit code 1: OSError: no table") as caught:
        await open_box(ToolSpec(name="add_to_cart", source=source))
    assert caught.value.boundary is Boundary.ENVIRONMENT and not caught.value.retryable


@pytest.mark.parametrize("state", ["self.state = []", "self.state['x'] = 'y' * 40000", "self.state['x'] = {1}"])
async def test_state_must_be_small_json(open_box, state):
    source = CART.replace('self.state["total"] += count', state + "; return 'done'")
    box = await open_box(ToolSpec(name="add_to_cart", source=source))
    call = await box.call("add_to_cart", {"article": "nut"})
    assert not call.ok and ("state" in call.error or "JSON serializable" in call.error)


SHELL = ToolSpec(name="shell")


async def test_shell_and_python_keep_both_streams(open_box):
    box = await open_box(SHELL, ToolSpec(name="python"))
    call = await box.call("shell", {"command": "echo out; echo bad >&2; exit 3"})
    assert (call.result, call.ok) == ("out\n\nbad\n\n[exit code 3: bad]", False)
    assert (call.stdout, call.stderr, call.exit_code) == ("out\n", "bad\n", 3)
    call = await box.call("python", {"code": "print(1); 1/0"})
    assert call.stdout == "1\n" and "ZeroDivisionError" in call.error
    refused = await box.call("shell", {"command": "echo \0"})
    assert refused.outcome is ToolOutcome.REFUSED and not refused.invalid and "NUL" in refused.error
    assert (await box.call("shell", {"command": "kill -9 $$"})).outcome is ToolOutcome.SIGNAL


class TestFiles:
    @pytest.fixture
    async def box(self, open_box):
        return await open_box(ToolSpec(name="read_file"), ToolSpec(name="write_file"), SHELL)

    async def test_whole_files_come_without_a_note(self, box):
        assert (await box.call("read_file", {"path": "data/in.txt"})).result == "one\ntwo\n"
        assert (await box.call("read_file", {"path": "/workspace/data/in.txt"})).result == "one\ntwo\n"

    async def test_reads_are_paged_by_line(self, box):
        await box.call("shell", {"command": "seq 1 1000 > n.txt"})
        call = await box.call("read_file", {"path": "n.txt", "start_line": 3, "num_lines": 2})
        assert call.result == "3\n4\n[lines 3 to 4 of 1000; start_line=5 goes on]" and not call.truncated
        first = await box.call("read_file", {"path": "n.txt"})
        assert first.truncated and "; start_line=" in first.result
        seen, start = [], 1
        while start:
            text = (await box.call("read_file", {"path": "n.txt", "start_line": start})).result
            lines, _, note = text.rpartition("\n[")
            seen += lines.split()
            start = int(note.partition("start_line=")[2].partition(" ")[0] or 0)
        assert seen == [str(n) for n in range(1, 1001)]
        beyond = await box.call("read_file", {"path": "n.txt", "start_line": 1001})
        assert not beyond.ok and "has 1000 lines" in beyond.error

    async def test_a_line_longer_than_the_limit_is_cut(self, box):
        await box.call("shell", {"command": "head -c 10000 /dev/zero | tr '\\0' a > long; echo b >> long"})
        call = await box.call("read_file", {"path": "long"})
        assert call.truncated and len(call.result) < 2200 and "the line is longer than 2000 bytes" in call.result

    async def test_writing_makes_folders_and_appends(self, box):
        assert (await box.call("write_file", {"path": "a/b.txt", "content": "é\n"})).result == "wrote 3 bytes"
        more = await box.call("write_file", {"path": "a/b.txt", "content": "x\n", "append": True})
        assert more.result == "appended 2 bytes to a/b.txt, now 5"
        assert (await box.call("read_file", {"path": "a/b.txt"})).result == "é\nx\n"

    @pytest.mark.parametrize(
        ("name", "arguments", "error"),
        [
            ("read_file", {"path": "data/im.txt"}, "data/im.txt: no such file; data holds in.txt"),
            ("read_file", {"path": "data"}, "data is a folder; data holds in.txt"),
            ("read_file", {"path": "pipe"}, "pipe is not a regular file"),
            ("read_file", {"path": "/etc/shadow"}, "is not a path below /workspace"),
            ("read_file", {"path": "../x"}, "is not a path below /workspace"),
            ("write_file", {"path": "data", "content": ""}, "data is a folder"),
            ("write_file", {"path": "pipe", "content": ""}, "pipe"),
            ("write_file", {"path": "link", "content": "x"}, "link"),
            ("write_file", {"path": "data/in.txt/x", "content": "x"}, "data/in.txt/x"),
            ("write_file", {"path": "huge", "content": "x" * (5 * 2**20)}, "huge"),
        ],
    )
    async def test_what_cannot_be_done_is_said_clearly(self, box, name, arguments, error):
        await box.call("shell", {"command": "mkfifo pipe; ln -s /tmp/elsewhere link"})
        call = await box.call(name, arguments)
        assert not call.ok and not call.invalid and error in call.error, call

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"path": ""}, "argument 'path'"),
            ({"path": "x", "start_line": 0}, "argument 'start_line': 0 is less than the minimum of 1"),
            ({"path": "x", "start_line": 2.5}, "argument 'start_line': 2.5 is not of type 'integer'"),
            ({"path": "x", "lines": 2}, "unknown argument 'lines'; the arguments are path, start_line, num_lines"),
        ],
    )
    async def test_arguments_outside_the_schema_are_refused(self, box, arguments, error):
        call = await box.call("read_file", arguments)
        assert call.invalid and error in call.error
