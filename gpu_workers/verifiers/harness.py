"""Runs a verifier program inside its sandbox; only the standard library, so that it runs on any Python there.

The host passes `program`, `episode` and `nonce`; the text returned travels over a pipe that is not stdout. Code of
the candidate belongs in a process of its own: programs get `run_python(source, stdin, timeout_seconds)` for it, whose
process sees neither the expected answer nor the nonce, and cannot read this one's memory.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

MAX_OUTPUT = 1 << 20


def call(arguments: dict[str, Any]) -> str:
    """Result of the program's verify(episode) with the nonce, as JSON."""
    namespace: dict[str, Any] = {"__name__": "verifier", "run_python": run_python}
    exec(compile(arguments["program"], "<verifier>", "exec"), namespace)  # noqa: S102  the task author's program
    verify = namespace.get("verify")
    if not callable(verify):
        raise TypeError("the verifier program defines no function verify(episode)")
    result = verify(arguments["episode"])
    if type(result) is not dict:
        raise TypeError("verify() must return a dict with a score, got " + type(result).__name__)
    return json.dumps({"nonce": arguments["nonce"], "result": result})


def run_python(source: str, stdin: str = "", timeout_seconds: float = 5.0) -> dict[str, Any]:
    """Run a candidate's code as a script of its own: exit_code, stdout, stderr, timed_out. Output is cut at 1 MiB."""
    script = os.memfd_create("candidate")
    streams = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    _fill(script, source)
    _fill(streams[0], stdin)
    os.lseek(streams[0], 0, os.SEEK_SET)
    process = subprocess.Popen(
        [sys.executable, "-I", f"/proc/self/fd/{script}"],
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        pass_fds=[script],
        start_new_session=True,
        cwd="/tmp",  # noqa: S108  the sandbox's own
    )
    timed_out = False
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    stdout, stderr = (os.pread(fd, MAX_OUTPUT, 0).decode("utf-8", "replace") for fd in streams[1:])
    for fd in (script, *streams):
        os.close(fd)
    return {"exit_code": process.returncode, "stdout": stdout, "stderr": stderr, "timed_out": timed_out}


def _fill(fd: int, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(fd, data) :]
