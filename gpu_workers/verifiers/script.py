"""Verifier that runs a task author's test script over the workspace, in a fresh sandbox, as Harbor's format does.

The script finds the policy's files in the task's working folder, its own tree in /tests, and leaves a reward in
/logs/verifier/reward.txt or reward.json, which is read from outside once every process has ended. Code of the policy
that the script runs is in the same sandbox as the script: what such code writes to the reward file cannot be told from
the script's own word. A suite of this kind is as strong as its scripts; an audit verifier can be put beside it.
"""

import json
import math
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts.enums import Boundary, ReasonCode
from gpu_workers.contracts.environment import WORKSPACE
from gpu_workers.contracts.seams import FinishedEpisode, Sandbox, SandboxBackend, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, TaskBundle, VerifierSpec
from gpu_workers.verifiers.results import NoResult, SandboxDied, TaskError, VerifierConfig, failed, passed, read_config
from gpu_workers.verifiers.sandboxed import MAX_EPISODE_BYTES, too_large

APP, TESTS, LOGS = "app", "tests", "logs"  # below the verifier's own workspace
REWARD_TEXT, REWARD_JSON = f"{LOGS}/verifier/reward.txt", f"{LOGS}/verifier/reward.json"
MAX_REWARD_BYTES = 64 * 2**10
TAIL = 1500
EXECUTABLE = (b"#!", b"\x7fELF")


class ScriptConfig(VerifierConfig, frozen=True, kw_only=True):
    workdir: str = "/app"  # where the script expects the policy's files
    script: str = "test.sh"  # in the tree of tests
    environment: dict[str, str] = {}
    pass_reward: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class ScriptVerifier:
    """Passes from `pass_reward` on. Raises NoResult where the script left no sound reward, WorkerError."""

    def __init__(self, spec: VerifierSpec, backend: SandboxBackend) -> None:
        self.config = read_config(spec, ScriptConfig)
        if self.config.script not in spec.files:
            raise TaskError(f"verifier.files: holds no {self.config.script}")
        self.spec = spec
        self.backend = backend

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if sum(map(len, episode.files.values())) > MAX_EPISODE_BYTES:
            raise too_large()
        sandbox = self.backend.create(self.contract(task))
        try:
            await sandbox.start()
            try:
                return await self._run(sandbox, task, episode)
            except WorkerError as error:
                raise SandboxDied(ReasonCode.VERIFIER_CRASH, f"the verifier's sandbox ended: {error}") from error
        finally:
            await sandbox.close()

    def contract(self, task: TaskBundle) -> EnvironmentContract:
        """The verifier's share of the task's contract, with the places where the script looks for files."""
        links = {"/tests": TESTS, "/logs": LOGS}
        if self.config.workdir != WORKSPACE:
            links[self.config.workdir] = APP
        limits = msgspec.structs.replace(
            task.contract.limits, tool_timeout_seconds=task.contract.limits.verify_timeout_seconds
        )
        environment = {**task.contract.environment, **self.config.environment, "PYTHONNOUSERSITE": "1"}
        granted = task.contract.for_verifier(limits)
        return msgspec.structs.replace(granted, links=links, environment=environment)

    async def _run(self, sandbox: Sandbox, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        files = {f"{APP}/{path}": data for path, data in episode.files.items()}
        files |= {f"{TESTS}/{path}": text.encode() for path, text in self.spec.files.items()}
        for path, data in {**files, f"{LOGS}/verifier/.keep": b"", f"{APP}/.keep": b""}.items():
            await sandbox.write(path, data)
        runnable = [path for path, data in files.items() if data.startswith(EXECUTABLE)]
        if runnable:
            await sandbox.exec(["chmod", "+x", "--", *runnable])
        command = f'rm -f {APP}/.keep && cd {APP} && exec bash "{WORKSPACE}/{TESTS}/$0"'
        timeout = task.contract.limits.verify_timeout_seconds
        done = await sandbox.exec(["/bin/bash", "-c", command, self.config.script], timeout_seconds=timeout)
        tail = f"{done.stdout}\n{done.stderr}".strip()[-TAIL:]
        if done.timed_out:
            raise NoResult(ReasonCode.VERIFIER_TIMEOUT, f"the script did not end within {timeout:g} s; it said: {tail}")
        if done.limit_hit in ("memory", "cpu"):
            raise NoResult(ReasonCode.VERIFIER_CRASH, f"the script was stopped at its {done.limit_hit} limit")
        reward = await read_reward(sandbox)
        if reward is None:
            message = f"the script ended with code {done.exit_code} and left no reward; it said: {tail or 'nothing'}"
            raise NoResult(ReasonCode.VERIFIER_NO_RESULT, message)
        evidence = {"reward": reward, "exit_code": done.exit_code, "output": tail}
        if reward >= self.config.pass_reward:
            return passed(score=reward, evidence=evidence)
        return failed(ReasonCode.WRONG_ANSWER, f"the script's reward is {reward:g}", score=reward, evidence=evidence)


async def read_reward(sandbox: Sandbox) -> float | None:
    """The reward that the script left; None where there is none. Raises NoResult for one that is unsound."""
    text = await _read(sandbox, REWARD_TEXT)
    if text is not None:
        return _sound(text.strip(), REWARD_TEXT)
    text = await _read(sandbox, REWARD_JSON)
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, f"{REWARD_JSON} is no JSON: {error}") from error
    if isinstance(found, dict):
        found = found.get("reward", next(iter(found.values())) if len(found) == 1 else None)
    return _sound(found, REWARD_JSON)


async def _read(sandbox: Sandbox, path: str) -> str | None:
    """The file's text; None where there is no regular file."""
    try:
        return (await sandbox.read(path, MAX_REWARD_BYTES)).decode(errors="replace")
    except WorkerError as error:
        if error.boundary is not Boundary.POLICY:
            raise
        return None


def _sound(value: Any, where: str) -> float:
    try:
        reward = float("nan") if isinstance(value, bool) or not isinstance(value, str | int | float) else float(value)
    except ValueError:
        reward = float("nan")
    if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, f"{where}: {str(value)[:60]!r} is no number from 0 to 1")
    return reward
