"""The module `ratchet_verifier`, which verifier programs and test suites import: results, candidates run apart.

Code of the candidate belongs in a process of its own: it sees neither the expected answer nor the nonce, and cannot
read the verifier's memory. `run_program` and `run_python` run it as a script; `open_candidate` calls its functions.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from gpu_workers.verifiers.inside import audit, pipes

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


# A script of its own as Python starts it, with the watch in place before its first line.
SCRIPT = (
    "import os,sys\n"
    "def main():\n"
    " module=type(sys)('audit')\n"
    " with open({texts},'rb') as file: exec(compile(file.read(),'<gpu_workers.audit>','exec'),module.__dict__)\n"
    " module.watch({watch},os.getcwd(),{shown!r})\n"
    " sys.argv=[{path!r}]\n"
    " with open({script},'rb',closefd=False) as file: return compile(file.read(),{path!r},'exec')\n"
    "main=main()\n"
    "__file__=sys.argv[0]\n"
    "del os,sys\n"
    "exec(globals().pop('main'))\n"
)


def run_python(source: str, stdin: str = "", timeout_seconds: float = 5.0) -> dict:
    """Run a candidate's code as a script of its own: exit_code, stdout, stderr, timed_out. Output is cut at 1 MiB."""
    script, texts, reports = in_memory(source), in_memory(vars(audit)["__source__"]), pipes.Reports()
    path = "/proc/self/fd/" + str(script)
    code = SCRIPT.format(texts=texts, watch=reports.theirs, shown=pipes.shown(), path=path, script=script)
    try:
        fds = (script, texts, reports.theirs)
        argv = [sys.executable, "-I", "-c", code]
        return run_program(argv, stdin, timeout_seconds, pass_fds=fds, cwd="/tmp", home="/tmp")  # noqa: S108
    finally:
        os.close(script)
        os.close(texts)
        reports.given()
        reports.close()


def run_program(
    argv: list, stdin: str = "", timeout_seconds: float = 5.0, pass_fds: tuple = (), cwd: str | None = None,
    home: str = NO_HOME,
) -> dict:  # fmt: skip
    """Run a program in the folder of the candidate's files, with its whole process group ended afterwards.

    It finds no home: files there configure git, Python and others, and a process of the candidate could write them
    meanwhile. A program that needs one, as a compiler with a cache, is given a folder as `home`. One that prints
    without end is stopped, and the check's result says so.
    """
    given, outputs = in_memory(stdin), [pipes.Output(), pipes.Output()]
    try:
        process = subprocess.Popen(
            argv, stdin=given, stdout=outputs[0].theirs, stderr=outputs[1].theirs, pass_fds=pass_fds,
            start_new_session=True, cwd=cwd, env={**os.environ, "HOME": home},
        )  # fmt: skip
    except BaseException:
        for output in outputs:
            output.given()
            output.close()
        raise
    finally:
        os.close(given)
    for output in outputs:
        output.given()
    timed_out = not _ended(process, outputs, time.monotonic() + timeout_seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for output in outputs:
        output.read_all()
        output.close()
    if any(output.is_flood for output in outputs):
        pipes.note("flood", f"{argv[0]}: more than {pipes.FLOOD} bytes of output")
    stdout, stderr = (output.text() for output in outputs)
    return {"exit_code": process.returncode, "stdout": stdout, "stderr": stderr, "timed_out": timed_out}


def _ended(process: Any, outputs: list, until: float) -> bool:
    """Take the output until the process has ended or floods; False where it does neither in time."""
    while process.poll() is None:
        left = until - time.monotonic()
        if left <= 0:
            return False
        reading = [output for output in outputs if output.is_open]
        if not reading:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left)
            continue
        # A program that it started may keep the pipe open: then its own end is looked for now and again.
        ready = select.select([output.fd for output in reading], [], [], min(left, 0.05))[0]
        for output in reading:
            if output.fd in ready:
                output.read()
            if output.is_flood:
                return True
    return True


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
