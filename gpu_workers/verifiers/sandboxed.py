"""One run of verifier code in a fresh sandbox of its own, its result by a private channel with a nonce."""

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.groups import SandboxRecord
from gpu_workers.contracts.seams import ExecResult, SandboxBackend, WorkerError
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.verifiers.results import NoResult, SandboxDied

INSIDE = Path(__file__).with_name("inside")
MAX_EPISODE_BYTES = 32 * 2**20
OUTPUT_BYTES = 256 * 2**10  # room for the result of a suite of some hundred tests
# Modules come from memory: no file of this project is visible to the candidate. There is no home: the working folder
# holds the candidate's files, and files of a home configure git, Python and other programs of a check.
_LOADER = """
import os, sys

for name, text in MODULES:
    module = sys.modules[name] = type(sys)(name)
    module.__source__ = text
    if name.endswith(".sdk"):
        sys.modules["ratchet_verifier"] = module
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)

def call(arguments):
    os.environ.update(HOME=sys.modules["ratchet_verifier"].NO_HOME, PYTHONNOUSERSITE="1")
    return module.call(arguments)
"""
_PACKAGE = "gpu_workers.verifiers.inside"


@dataclass(frozen=True)
class SandboxRun:
    """What came through the private channel, and what the sandbox says of the run."""

    result: dict[str, Any]
    nonce: str
    record: SandboxRecord


def bundle(entry: str, *modules: str) -> str:
    """One Python source that holds modules of `inside/`, imported in this order; `entry` has `call(arguments)`."""
    parents = [(_PACKAGE.rsplit(".", depth)[0], "") for depth in (2, 1, 0)]
    texts = [(f"{_PACKAGE}.{name}", (INSIDE / f"{name}.py").read_text(encoding="utf-8")) for name in (*modules, entry)]
    return f"MODULES = {[*parents, *texts]!r}\n" + _LOADER


async def run_sandboxed(
    backend: SandboxBackend, task: TaskBundle, source: str, arguments: Mapping[str, Any]
) -> SandboxRun:
    """Run a bundle with the arguments and a nonce. Raises NoResult, SandboxDied; WorkerError without a sandbox."""
    nonce = secrets.token_hex(16)
    limits = msgspec.structs.replace(task.contract.limits, output_bytes=OUTPUT_BYTES)
    sandbox = backend.create(task.contract.for_verifier(limits))
    try:
        await sandbox.start()
        try:
            done = await sandbox.run_python(
                source,
                function="call",
                arguments={**arguments, "nonce": nonce},
                timeout_seconds=limits.verify_timeout_seconds,
            )
        except WorkerError as error:
            raise SandboxDied(ReasonCode.VERIFIER_CRASH, f"the verifier's sandbox ended: {error}") from error
    finally:
        await sandbox.close()
    return SandboxRun(result=open_envelope(done, nonce), nonce=nonce, record=sandbox.record)


def open_envelope(done: ExecResult, nonce: str) -> dict[str, Any]:
    """The result that the code inside handed over. Raises NoResult."""
    if done.timed_out:
        raise NoResult(ReasonCode.VERIFIER_TIMEOUT, f"no result within {done.duration_seconds:.1f} s")
    if done.limit_hit in ("memory", "cpu", "output"):
        message = f"the verifier was stopped at its {done.limit_hit} limit"
        raise NoResult(ReasonCode.VERIFIER_CRASH, message, if_candidate=ReasonCode.RESOURCE_LIMIT)
    if done.exit_code != 0:
        lines = done.stderr.strip().splitlines() or ["nothing in its error output"]
        raise NoResult(ReasonCode.VERIFIER_CRASH, f"the verifier ended with code {done.exit_code}: {lines[-1]}")
    try:
        envelope = json.loads(done.stdout)
        authentic = hmac.compare_digest(str(envelope["nonce"]).encode(), nonce.encode())
        result = envelope["result"]
    except (ValueError, KeyError, TypeError, RecursionError):
        no_result("the verifier ended without handing over a result")
    if not authentic or not isinstance(result, dict):
        no_result("the result does not carry this verification's nonce")
    return result


def too_large() -> NoResult:
    """Of an episode whose files no verifier will take."""
    message = f"the files exceed {MAX_EPISODE_BYTES} bytes"
    return NoResult(ReasonCode.VERIFIER_NO_RESULT, message, if_candidate=ReasonCode.RESOURCE_LIMIT)


def no_result(message: str) -> NoReturn:
    raise NoResult(ReasonCode.VERIFIER_NO_RESULT, message)
