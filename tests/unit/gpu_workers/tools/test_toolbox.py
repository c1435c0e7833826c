"""Declaration and refusal of tools; execution is in the conformance suite."""

import pytest

from gpu_workers.contracts.enums import Boundary, ToolOutcome
from gpu_workers.contracts.seams import ExecResult, WorkerError
from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.tools.toolbox import ToolBox, ToolError

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ONE = "def call(arguments): return 1"
DOUBLE = ToolSpec(name="double", source="def call(a): return str(a['n'] * 2)", parameters=NUMBER)


class Canned:
    """A sandbox that answers every call with one result, and counts them."""

    def __init__(self, result):
        self.result = result
        self.num_calls = 0

    async def run_python(self, source, **_):
        self.num_calls += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


OK = ExecResult(0, "{}\n42", "", 0.001)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("treble", {"n": 1}, "unknown tool 'treble'; the tools are double"),
        ("double", {}, "double: argument 'n' is missing"),
        ("double", {"n": "1"}, "double: argument 'n': '1' is not of type 'integer'"),
        ("double", {"n": True}, "double: argument 'n': True is not of type 'integer'"),
        ("double", {"n": 1, "m": 2}, "double: unknown argument 'm'; the arguments are n"),
        ("double", [1], "must be an object of named values, got list"),
        ("double", {"n": float("nan")}, "double: argument 'n': nan is not a number of JSON"),
        ("double", {"n": 10**30}, "double: argument 'n': the integer has more than 64 bits"),
    ],
)
async def test_an_invalid_call_is_recorded_and_not_executed(name, arguments, error):
    sandbox = Canned(OK)
    record = await ToolBox(sandbox, [DOUBLE]).call(name, arguments)
    assert record.invalid and not record.ok
    assert error in record.error
    assert record.result == f"Error: {record.error}"
    assert record.outcome is ToolOutcome.REFUSED and record.exit_code is None
    assert sandbox.num_calls == 0


async def test_a_valid_call_is_recorded_with_its_result():
    record = await ToolBox(Canned(OK), [DOUBLE]).call("double", {"n": 21})
    assert (record.result, record.ok, record.invalid, record.arguments) == ("42", True, False, {"n": 21})
    assert record.duration_seconds > 0


async def test_nul_characters_are_replaced_in_results():
    record = await ToolBox(Canned(ExecResult(0, "{}\na\0b", "", 0.001)), [DOUBLE]).call("double", {"n": 1})
    assert record.result == "a\ufffdb"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (ExecResult(1, "", "Traceback\nKeyError: 'x'\n", 0.1), "exit code 1: KeyError: 'x'"),
        (ExecResult(-9, "", "", 5.0, timed_out=True), "timed out after 5.0 s"),
        (ExecResult(-9, "", "", 1.0, limit_hit="memory"), "stopped: memory limit"),
        (WorkerError(Boundary.POLICY, "no such file"), "no such file"),
    ],
)
async def test_a_failing_tool_tells_the_policy(result, error):
    record = await ToolBox(Canned(result), [DOUBLE]).call("double", {"n": 1})
    assert not record.ok and not record.invalid
    assert record.error == error
    assert error in record.result


async def test_a_broken_sandbox_is_not_the_policys_failure():
    with pytest.raises(WorkerError, match="gone"):
        await ToolBox(Canned(WorkerError(Boundary.INFRASTRUCTURE, "gone")), [DOUBLE]).call("double", {"n": 1})


@pytest.mark.parametrize(
    ("tools", "error"),
    [
        ([ToolSpec(name="browse")], "not built in; built in are shell"),
        ([DOUBLE, DOUBLE], "declared twice"),
        ([ToolSpec(name="bad", source="def call(:")], "does not compile"),
        (
            [ToolSpec(name="bad", source="def call(arguments): return 1", parameters={"type": "nonsense"})],
            "not a JSON schema",
        ),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(tools, error):
    with pytest.raises(ToolError, match=error):
        ToolBox(Canned(OK), tools)


async def test_a_reference_to_an_address_is_not_fetched():
    schema = {"type": "object", "properties": {"n": {"$ref": "http://127.0.0.1:9/schema"}}}
    record = await ToolBox(Canned(OK), [ToolSpec(name="t", source=ONE, parameters=schema)]).call("t", {"n": 1})
    assert record.invalid
    assert "cannot be checked" in record.error
