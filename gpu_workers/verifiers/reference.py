"""The episode that a task's reference solution makes, as its verifier would see it."""

from typing import Any

from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend
from gpu_workers.contracts.tasks import Message, TaskBundle
from gpu_workers.tools.toolbox import ToolBox, ToolError
from gpu_workers.verifiers.calls import CallSyntaxError, bind_arguments, parse_calls
from gpu_workers.verifiers.results import TaskError


async def reference_episode(task: TaskBundle, backend: SandboxBackend) -> FinishedEpisode:
    """Messages of the reference; its tool calls are executed when the verifier looks at files.

    Raises TaskError when the task has no reference or a call of it is refused.
    """
    turns = [message for message in task.reference if message.role == "assistant"]
    if not turns:
        raise TaskError("reference: the task has no assistant turn that solves it")
    messages = [_plain(message) for message in (*task.prompt, *task.reference)]
    files = {path: text.encode() for path, text in task.contract.files.items()}
    if sees_files(task) and task.tools and not task.terminal_call:
        files = await _replay(task, turns[:-1], backend)
    return FinishedEpisode(answer=turns[-1].content, messages=messages, files=files)


def sees_files(task: TaskBundle) -> bool:
    """Whether one of the task's verifiers looks at the workspace."""
    return task.verifier.sees_files or (task.audit_verifier is not None and task.audit_verifier.sees_files)


def answer_episode(task: TaskBundle, answer: str) -> FinishedEpisode:
    """An episode of one assistant turn that touched nothing."""
    messages = [_plain(message) for message in task.prompt] + [{"role": "assistant", "content": answer}]
    files = {path: text.encode() for path, text in task.contract.files.items()}
    return FinishedEpisode(answer=answer, messages=messages, files=files)


def _plain(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content}


async def _replay(task: TaskBundle, turns: list[Message], backend: SandboxBackend) -> dict[str, bytes]:
    """Files of the workspace after the calls of `turns`."""
    schemas = {tool.name: tool.parameters for tool in task.tools}
    sandbox = backend.create(task.contract)
    try:
        await sandbox.start()
        toolbox = ToolBox(sandbox, task.tools, task.contract.limits.output_bytes, servers=task.tool_servers)
        await toolbox.set_up()
        for turn in turns:
            for call in parse_calls(turn.content, task.tool_format):
                record = await toolbox.call(call.name, bind_arguments(call, schemas.get(call.name, {})))
                if record.invalid:
                    raise TaskError(f"reference: {record.error}")
        return await sandbox.files()
    except (CallSyntaxError, ToolError) as error:
        raise TaskError(f"reference: {error}") from error
    finally:
        await sandbox.close()
