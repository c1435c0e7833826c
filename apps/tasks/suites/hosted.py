"""Suites of environments built with the verifiers package or with OpenEnv: listed by their framework, declared by us.

The framework says what the policy is asked and which tools it has. What it cannot say stands in a declaration: what
the tasks are a sample of, which reward is a pass, and a solution of each task, without which no task passes its check.
"""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from apps.tasks.suites.declaration import Declaration
from apps.tasks.suites.definition import Suite, SuiteTask
from apps.tasks.suites.errors import SuiteError
from apps.tasks.suites.listing import list_rows
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.environment import EnvironmentContract, Limits
from gpu_workers.contracts.tasks import HostedEnvironment, Message, TaskBundle, ToolSpec, VerifierSpec

LIST_SECONDS = 900.0
MAX_TASKS = 10_000
CALLING = (
    'Call one tool a turn, with nothing else in it: <tool_call>{"name": "…", "arguments": {…}}</tool_call>. '
    "A turn without a call is your answer. The tools, with the JSON schema of their arguments:"
)
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One turn of a solution: a call of a tool, or the answer. `{name}` stands for a field of the task's data."""

    call: str = ""
    arguments: dict[str, Any] = {}
    answer: str = ""


class HostedBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: str
    id: str
    config: dict[str, Any] = {}
    limit: int = 100
    max_turns: int = 8
    min_reward: float = 0.0
    max_reward: float = 1.0
    pass_reward: float = 1.0


class HostedDeclaration(Declaration, frozen=True, kw_only=True):
    environment: HostedBlock
    reference: list[Turn] = []  # of every task
    known_bad: list[str] = []
    limits: Limits = Limits(tool_timeout_seconds=30.0, verify_timeout_seconds=60.0)


def build(declared: HostedDeclaration) -> Suite:
    """Ask the framework for the tasks and write them down. Raises SuiteError."""
    block = declared.environment
    if not 1 <= block.limit <= MAX_TASKS:
        raise SuiteError.single("environment.limit", f"must be from 1 to {MAX_TASKS}")
    if not block.min_reward < block.pass_reward <= block.max_reward:
        raise SuiteError.single("environment.pass_reward", "must be above min_reward and at most max_reward")
    argv = [
        sys.executable, "-m", "gpu_workers.environments", "list", block.kind, block.id,
        "--config", json.dumps(block.config), "--limit", str(block.limit),
    ]  # fmt: skip
    rows = list_rows(argv, source=f"{block.kind} {block.id}", timeout_seconds=LIST_SECONDS)
    tasks = [task_of(declared, row) for row in rows]
    split_of = declared.splits.draw([task.key for task in tasks])
    return declared.define(VerifierKind.ENVIRONMENT), merge_repeated([(split_of[task.key], task) for task in tasks])


def task_of(declared: HostedDeclaration, row: Mapping[str, Any]) -> TaskBundle:
    """A row of the framework's list as a task. Raises SuiteError."""
    block, fields = declared.environment, row.get("data", {})
    messages = [Message(role=message["role"], content=_text(row, message)) for message in row["messages"]]
    if not messages or messages[-1].role != "user":
        raise SuiteError.single(f"task {row['index']}", "has no prompt: its environment wants to speak first")
    tools = [_tool(tool["function"]) for tool in row["tools"]]
    return TaskBundle(
        key=f"{row['index']:05d}",
        prompt=with_tools(messages, tools),
        tools=tools,
        tool_format="json",
        max_turns=block.max_turns if row["tools"] else 1,
        contract=EnvironmentContract(source_format=block.kind, licence=declared.licence, limits=declared.limits),
        hosted=HostedEnvironment(
            kind=block.kind, id=block.id, index=row["index"], config=block.config, framework=row["framework"],
            digest=row["digest"], min_reward=block.min_reward, max_reward=block.max_reward,
            pass_reward=block.pass_reward,
        ),
        verifier=VerifierSpec(kind=VerifierKind.ENVIRONMENT),
        reference=_reference(declared.reference, fields, row["index"]),
        known_bad=[_fill(text, fields, row["index"]) for text in declared.known_bad],
        cluster=row.get("name", ""),
    )  # fmt: skip


def with_tools(messages: list[Message], tools: list[ToolSpec]) -> list[Message]:
    """The prompt with what a policy here has to know of the tools: the framework tells its own models beside it."""
    if not tools:
        return messages
    lines = [f"{tool.name}: {tool.description} {json.dumps(tool.parameters, sort_keys=True)}" for tool in tools]
    text = f"{CALLING}\n" + "\n".join(lines)
    if messages[0].role == "system":
        return [Message(role="system", content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def merge_repeated(tasks: list[SuiteTask]) -> list[SuiteTask]:
    """Tasks that ask exactly the same belong to one split, the most guarded of theirs."""
    order = (Split.HELDOUT, Split.REGRESSION, Split.DEV, Split.TRAIN)
    strictest: dict[str, Split] = {}
    for split, task in tasks:
        asked = repr((task.prompt, task.tools))
        strictest[asked] = min(split, strictest.get(asked, split), key=order.index)
    return [(strictest[repr((task.prompt, task.tools))], task) for _, task in tasks]


def _text(row: Mapping[str, Any], message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise SuiteError.single(
            f"task {row['index']}", "its prompt holds more than text, which no policy here can read"
        )
    return content


def _tool(function: Mapping[str, Any]) -> ToolSpec:
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(name=function["name"], description=function.get("description", ""), parameters=parameters)


def _reference(turns: list[Turn], fields: Mapping[str, Any], index: int) -> list[Message]:
    messages: list[Message] = []
    for turn in turns:
        if bool(turn.call) == bool(turn.answer):
            raise SuiteError.single("reference", "a turn is either a call or an answer")
        if turn.answer:
            messages.append(Message(role="assistant", content=_fill(turn.answer, fields, index)))
            continue
        call = {"name": turn.call, "arguments": _filled(turn.arguments, fields, index)}
        messages.append(Message(role="assistant", content=f"<tool_call>{json.dumps(call)}</tool_call>"))
        messages.append(Message(role="tool", content=""))
    if messages and messages[-1].role != "assistant":
        messages.append(Message(role="assistant", content="Done."))
    return messages


def _filled(value: Any, fields: Mapping[str, Any], index: int) -> Any:
    if isinstance(value, str):
        return _fill(value, fields, index)
    if isinstance(value, dict):
        return {name: _filled(item, fields, index) for name, item in value.items()}
    return [_filled(item, fields, index) for item in value] if isinstance(value, list) else value


def _fill(text: str, fields: Mapping[str, Any], index: int) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in fields:
            known = ", ".join(sorted(fields)) or "none"
            raise SuiteError.single(f"task {index}", f"its data has no field {name!r}; it has {known}")
        value = fields[name]
        return value if isinstance(value, str) else json.dumps(value)

    return _FIELD.sub(value_of, text)
