"""The line protocol between a worker and the host of a third-party environment; standard library only.

The worker writes requests to stdin, the host answers on what was its stdout; whatever the environment prints goes to
stderr. One JSON object a line. A session is {"op": "open"} … {"op": "close"}; in it {"op": "describe", …} lists tasks,
and an episode is one {"op": "start", …}, then {"op": "reply", "text", "calls"} after every answer
{"event": "turn", "messages", "tools"} until {"event": "end", "reward", …}. What goes wrong is
{"event": "error", "boundary", "message"}.
"""

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MAX_LINE = 8 << 20
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class TaskProblem(Exception):
    """What the suite asks for cannot be had from this environment, whoever plays it."""


def send(answers: int, message: dict[str, Any]) -> None:
    data = json.dumps(message, default=str).encode() + b"\n"
    if len(data) > MAX_LINE:
        text = f"an answer of {len(data)} bytes, {MAX_LINE} are allowed"
        data = json.dumps({"event": "error", "boundary": "environment", "message": text}).encode() + b"\n"
    while data:
        data = data[os.write(answers, data) :]


def serve_sessions(handlers: Callable[[], dict[str, Handler]]) -> None:
    """Serve one session after another, each in a process forked for it: nothing but imports is shared by two.

    After a session every process that it left is killed and what it wrote to /tmp is deleted.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # prints of the environment go to stderr
    os.set_inheritable(answers, False)
    send(answers, {"event": "ready"})
    while (line := _read_line()) and json.loads(line)["op"] == "open":
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.run(session_of(answers, handlers()))
                code = 0
            except BaseException as error:
                send(
                    answers,
                    {"event": "error", "boundary": "environment", "message": f"{type(error).__name__}: {error}"},
                )
            finally:
                os._exit(code)
        code = _wait(child)
        _clean()
        if code != 0:
            message = f"the environment's process ended with code {code}"
            send(answers, {"event": "error", "boundary": "environment", "message": message})
            return
        send(answers, {"event": "closed"})


async def session_of(answers: int, handlers: dict[str, Handler]) -> None:
    """Answer requests until `close`. What a handler raises becomes an answer."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", 0))
    send(answers, {"event": "opened"})
    while line := await reader.readline():
        request = json.loads(line)
        if request["op"] == "close":
            return
        try:
            answer = await handlers[request["op"]](request)
        except TaskProblem as error:
            answer = {"event": "error", "boundary": "task", "message": str(error)}
        except Exception as error:  # the edge of foreign code
            answer = {"event": "error", "boundary": "environment", "message": f"{type(error).__name__}: {error}"}
        send(answers, answer)


def _read_line() -> bytes:
    """One line, byte by byte: what follows belongs to the session."""
    os.set_blocking(0, True)  # the session before read it through an event loop
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _wait(child: int) -> int:
    """Exit code of a session; ends everything when the worker has gone."""
    hung_up = select.poll()
    hung_up.register(0, 0)
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if hung_up.poll(20):
            os._exit(1)


def _clean() -> None:
    """End what a session left running and delete what it left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    for folder in (Path(tempfile.gettempdir()), Path("/dev", "shm")):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
    Path.home().mkdir(exist_ok=True)


def digest_of(module: str) -> str:
    """SHA-256 over path and content of every source file of a package, so that a suite names the code it came from."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or not spec.origin:
        raise TaskProblem(f"the package {module!r} is not installed beside the framework")
    root = Path(spec.origin).parent
    files = sorted(root.rglob("*")) if spec.submodule_search_locations else [Path(spec.origin)]
    found = hashlib.sha256()
    for file in files:
        if file.is_file() and file.suffix not in (".pyc", ".pyo") and "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            found.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return found.hexdigest()
