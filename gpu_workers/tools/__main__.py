"""`python -m gpu_workers.tools`: try a file of tools, or an MCP server, in a real sandbox; print their declaration."""

import argparse
import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from gpu_workers.contracts.environment import EnvironmentContract, Limits, Mount, MountRole
from gpu_workers.contracts.seams import SandboxBackend, WorkerError
from gpu_workers.contracts.tasks import ToolServer, ToolSpec
from gpu_workers.contracts.tool_source import ToolSourceError, specs_of
from gpu_workers.sandboxes.backends import load_choice, make_backend
from gpu_workers.sandboxes.host import load_host_policy
from gpu_workers.tools.declared import ToolError, load_tools
from gpu_workers.tools.mcp import McpSession, tool_specs
from gpu_workers.tools.toolbox import ToolBox

LISTING = Limits(output_bytes=4 * 2**20)  # descriptions of many tools are long


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when everything is as it should be, 1 with the reason on stderr."""
    words = sys.argv[1:] if argv is None else argv
    stop = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:stop])
    options.command = words[stop + 1 :]
    try:
        asyncio.run(options.run(options))
    except (ToolError, ToolSourceError, WorkerError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.tools", description=__doc__)
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="read a file of tools, show their schemas, call them in a sandbox")
    check.add_argument("file", type=Path)
    check.add_argument("--name", default="", help="of a tool written as `def call(arguments)`; else the file's")
    check.add_argument("--declare", action="store_true", help="print only the JSON for a suite's `tools`")
    check.set_defaults(run=_check)
    mcp = commands.add_parser(
        "mcp",
        help="start an MCP server in a sandbox and print its declaration for a suite",
        usage="%(prog)s [options] name (--source FILE | -- program argument …)",
    )
    mcp.add_argument("name", help="of the server; its tools become <name>.<tool>")
    mcp.add_argument("--source", type=Path, help="a Python script that is in no file of the sandbox")
    mcp.add_argument("--file", action="append", default=[], type=Path, help="copied into the workspace first")
    mcp.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    mcp.set_defaults(run=_mcp)
    for command in (check, mcp):
        command.add_argument("--call", action="append", default=[], metavar="'tool {JSON}'", help="an example to run")
        command.add_argument(
            "--mount",
            action="append",
            default=[],
            metavar="SOURCE:PATH",
            help="data of a contract, e.g. packages/mcp:/opt/packages; its root is in SANDBOX_DATA_ROOTS",
        )
    return parser


async def _check(options: argparse.Namespace) -> None:
    source = options.file.read_text(encoding="utf-8")
    specs = specs_of(source, options.name or options.file.stem)
    load_tools(specs)
    if options.declare:
        _print_json({"tools": specs})
        return
    for spec in specs:
        print(f"{spec.name}: {spec.description.splitlines()[0] if spec.description else 'no description'}")
        print(json.dumps(spec.parameters, indent=2))
    await _try(_backend(), specs, [], options.call, EnvironmentContract(mounts=_mounts(options)))


async def _mcp(options: argparse.Namespace) -> None:
    environment = dict(pair.split("=", 1) for pair in options.env if "=" in pair)
    source = options.source.read_text(encoding="utf-8") if options.source else ""
    server = ToolServer(name=options.name, source=source, command=options.command, environment=environment)
    files = {path.name: path.read_text(encoding="utf-8") for path in options.file}
    contract = EnvironmentContract(files=files, mounts=_mounts(options), limits=LISTING)
    backend = _backend()
    sandbox = backend.create(contract)
    try:
        await sandbox.start()
        protocol, listed = await McpSession(sandbox, server, []).list_tools()
    finally:
        await sandbox.close()
    server = msgspec.structs.replace(server, protocol=protocol)
    specs = tool_specs(server, listed)
    load_tools(specs, [server])
    if not options.call:
        _print_json({"tool_servers": [server], "tools": specs})
    await _try(backend, specs, [server], options.call, contract)


def _backend() -> SandboxBackend:
    """The one a worker with these variables would use."""
    return make_backend(load_choice(os.environ), load_host_policy(os.environ))


def _mounts(options: argparse.Namespace) -> list[Mount]:
    pairs = [text.rpartition(":") for text in options.mount]
    return [Mount(source=source, path=path, role=MountRole.INPUT) for source, _, path in pairs]


async def _try(
    backend: SandboxBackend,
    specs: list[ToolSpec],
    servers: list[ToolServer],
    calls: list[str],
    contract: EnvironmentContract,
) -> None:
    """Set the tools up in a sandbox and make the example calls, one after another. Raises ToolError where one fails."""
    sandbox = backend.create(contract)
    try:
        await sandbox.start()
        box = ToolBox(sandbox, specs, contract.limits.output_bytes, servers=servers)
        await box.set_up()
        for text in calls:
            name, _, rest = text.strip().partition(" ")
            record = await box.call(name, json.loads(rest or "{}"))
            print(f"{shlex.quote(text)} -> {record.outcome}, {1000 * record.duration_seconds:.1f} ms")
            print(record.result)
            if not record.ok:
                sys.stderr.write(record.stderr)
                raise ToolError(f"the example {text!r} failed: {record.error}")
    finally:
        await sandbox.close()


def _print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
