"""The seat of the policy in an environment of the verifiers package: a harness that runs its loop in the host.

It asks the framework's own endpoint for every turn and calls the environment's tools over MCP, as a harness must; the
framework then asks the model behind the endpoint, which is the worker.
"""

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import mcp_client

__all__ = ["RatchetHarness"]
SECONDS = 24 * 3600.0  # the worker ends an episode, not this client


class RatchetHarnessConfig(vf.HarnessConfig):
    pass


class RatchetHarness(vf.Harness[RatchetHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        messages = opening(*self.resolve_prompt(data))
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(httpx.AsyncClient(timeout=SECONDS))
            tools, owners = await self._connect(stack, mcp_urls)
            while True:
                body: dict[str, Any] = {"model": ctx.model, "messages": messages}
                if tools:
                    body["tools"] = tools
                headers = {"Authorization": f"Bearer {secret}"}
                answer = await model.post(f"{endpoint.rstrip('/')}/chat/completions", json=body, headers=headers)
                if trace.stop_condition is not None:
                    break
                answer.raise_for_status()
                message = answer.json()["choices"][0]["message"]
                messages.append({key: value for key, value in message.items() if value is not None})
                if not message.get("tool_calls"):
                    break
                for call in message["tool_calls"]:
                    messages.append(await _call(owners, call))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    async def _connect(
        self, stack: AsyncExitStack, mcp_urls: dict[str, str]
    ) -> tuple[list[dict[str, Any]], dict[str, tuple[Any, str]]]:
        """The environment's tools in the chat format, and who answers which."""
        tools, owners = [], {}
        for server, url in mcp_urls.items():
            client = await stack.enter_async_context(mcp_client({"url": url, "timeout": self.config.tool_timeout}))
            for tool in (await client.list_tools()).tools:
                name = f"{server}_{tool.name}" if server else tool.name
                owners[name] = (client, tool.name)
                schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None) or {}
                function = {"name": name, "description": tool.description or "", "parameters": schema}
                tools.append({"type": "function", "function": function})
        return tools, owners


def opening(system: str | None, prompt: Any) -> list[dict[str, Any]]:
    """System prompt and prompt as chat messages."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *(message_to_wire(message) for message in prompt or [])]


async def _call(owners: dict[str, tuple[Any, str]], call: dict[str, Any]) -> dict[str, Any]:
    """One tool call; what goes wrong is told to the policy."""
    function = call["function"]
    try:
        client, name = owners[function["name"]]
        result = await client.call_tool(name, json.loads(function["arguments"] or "{}"))
        text = "\n".join(getattr(part, "text", "") or f"[{part.type}]" for part in result.content)
    except Exception as error:
        text = f"error: {type(error).__name__}: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": text}
