"""The module `ratchet_verifier`, which verifier programs and test suites import: results, candidates run apart.

Code of the candidate belongs in a process of its own: it sees neither the expected answer nor the nonce, and cannot
read the verifier's memory. `run_program` and `run_python` run it as a script; `open_candidate` calls its functions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

MAX_OUTPUT = 1 << 20
NO_HOME = "/nonexistent"  # nobody can make it: no process of the candidate leaves settings there for a program


def passed(message: str = "", **evidence: Any) -> dict:
    """The result of a right answer."""
    return {"score": 1.0, "message": message, "evidence": evidence}


def failed(message: str = "", score: float = 0.0, reason_code: str = "WRONG_ANSWER", **evidence: Any) -> dict:
    """The result of a wrong answer; a score below the pass score is partial credit."""
    return {"score": score, "message": message, "reason_code": reason_code, "evidence": evidence}


def all_of(parts: dict, weights: dict | None = None) -> dict:
    """One result of several named ones: it passes when all do; the score is their weighted mean.

    Message and reason are those of the first part that fails, in the order given.
    """
    weights = weights or {}
    total = sum(weights.get(name, 1.0) for name in parts)
    score = sum(part["score"] * weights.get(name, 1.0) for name, part in parts.items()) / total
    components = [
        {"name": name, **{key: part.get(key, "") for key in ("score", "message")}} for name, part in parts.items()
    ]
    for name, part in parts.items():
        if part["score"] < 1.0:
            reason = part.get("reason_code", "WRONG_ANSWER")
            text = name + ": " + str(part.get("message", ""))
            return {"score": min(score, 0.99), "message": text, "reason_code": reason, "components": components}
    return {"score": 1.0, "message": "", "components": components}


def run_python(source: str, stdin: str = "", timeout_seconds: float = 5.0) -> dict:
    """Run a candidate's code as a script of its own: exit_code, stdout, stderr, timed_out. Output is cut at 1 MiB."""
    script = in_memory(source)
    try:
        argv = [sys.executable, "-I", "/proc/self/fd/" + str(script)]
        return run_program(argv, stdin, timeout_seconds, pass_fds=(script,), cwd="/tmp", home="/tmp")  # noqa: S108
    finally:
        os.close(script)


def run_program(
    argv: list, stdin: str = "", timeout_seconds: float = 5.0, pass_fds: tuple = (), cwd: str | None = None,
    home: str = NO_HOME,
) -> dict:  # fmt: skip
    """Run a program in the folder of the candidate's files, with its whole process group ended afterwards.

    It finds no home: files there configure git, Python and others, and a process of the candidate could write them
    meanwhile. A program that needs one, as a compiler with a cache, is given a folder as `home`.
    """
    streams = [in_memory(stdin), in_memory(), in_memory()]
    process = subprocess.Popen(
        argv, stdin=streams[0], stdout=streams[1], stderr=streams[2], pass_fds=pass_fds, start_new_session=True,
        cwd=cwd, env={**os.environ, "HOME": home},
    )  # fmt: skip
    timed_out = False
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    stdout, stderr = (os.pread(fd, MAX_OUTPUT, 0).decode("utf-8", "replace") for fd in streams[1:])
    for fd in streams:
        os.close(fd)
    return {"exit_code": process.returncode, "stdout": stdout, "stderr": stderr, "timed_out": timed_out}


def in_memory(text: str = "") -> int:
    """Descriptor of a file without a name, rewound."""
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)  # noqa: S108  the sandbox's own; it has no memfd
    data = text.encode("utf-8", "surrogateescape")
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def open_candidate(
    files: dict, timeout_seconds: float = 5.0, objects: bool = False, changes_arguments: bool = False
) -> Any:
    """A process with the candidate's files; its `.module(name)` is a module whose functions run over there.

    Use it in a `with`. Values cross as plain data with strict types; objects stay there and never equal plain data.
    Of an object, operators with a value of yours, `in` without iteration and methods as `startswith` are refused unless
    `objects` says that the check is of classes. What a function does to the lists, dictionaries and sets it is given
    happens to yours if it returns None, and with `changes_arguments` whatever it returns.
    """
    from gpu_workers.verifiers.inside import remote  # it needs what this module has

    remote.write_files(files)
    return remote.Candidate(timeout_seconds, objects=objects, changes_arguments=changes_arguments)
