"""Verifier that runs a task author's test script over the workspace, in a fresh sandbox, as Harbor's format does.

The script finds the policy's files in the task's working folder, its own tree in /tests, and leaves a reward in
/logs/verifier/reward.txt or reward.json. Code of the policy that the script runs is in the same sandbox, often in the
same Python process. So a Python that checks is believed only where it came to its end (see `witness`), and a reward
only where it was left in the way in which the reference's run leaves it.
"""

import json
import math
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.environment import WORKSPACE
from gpu_workers.contracts.seams import (
    ExecResult,
    FinishedEpisode,
    Sandbox,
    SandboxBackend,
    VerifierResult,
    WorkerError,
)
from gpu_workers.contracts.tasks import EnvironmentContract, TaskBundle, VerifierSpec
from gpu_workers.verifiers.detectors.runtime import SEEN
from gpu_workers.verifiers.inside.audit import MAX_OF_KIND
from gpu_workers.verifiers.results import NoResult, SandboxDied, TaskError, VerifierConfig, failed, passed, read_config
from gpu_workers.verifiers.sandboxed import MAX_EPISODE_BYTES, OUTPUT_BYTES, too_large
from gpu_workers.verifiers.witness.course import OPEN, Course, Courses, Seal, deviation
from gpu_workers.verifiers.witness.history import FolderWatch, History
from gpu_workers.verifiers.witness.programs import OVERSEER, witness_programs

APP, TESTS, LOGS, HOME = "app", "tests", "logs", "home"  # below the verifier's own workspace
REWARD_TEXT, REWARD_JSON = "reward.txt", "reward.json"  # in the folder of the logs
REWARDS = frozenset({REWARD_TEXT, REWARD_JSON})
TAIL = 1500
EXECUTABLE = (b"#!", b"\x7fELF")
ADVICE = (
    "a check has passed only when its main program ends by itself, by sys.exit of its own or in pytest or unittest; a"
    " call of the candidate that may exit belongs in pytest.raises(SystemExit) or in a process of its own"
)


class ScriptConfig(VerifierConfig, frozen=True, kw_only=True):
    workdir: str = "/app"  # where the script expects the policy's files
    script: str = "test.sh"  # in the tree of tests
    environment: dict[str, str] = {}
    pass_reward: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


class ScriptVerifier:
    """Passes from `pass_reward` on. Raises NoResult where the script left no sound reward, WorkerError.

    The reference's course is taken once a task: what a candidate's run does beside it to its reward or its tests is not
    believed. Without a reference that passes there is nothing to compare, and only ends of Python are looked at.
    """

    def __init__(self, spec: VerifierSpec, backend: SandboxBackend) -> None:
        self.config = read_config(spec, ScriptConfig)
        if self.config.script not in spec.files:
            raise TaskError(f"verifier.files: holds no {self.config.script}")
        self.spec = spec
        self.backend = backend
        self.courses = Courses(backend, self._run, spec)

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if sum(map(len, episode.files.values())) > MAX_EPISODE_BYTES:
            raise too_large()
        usual = await self.courses.of(task)
        course = await self._run(task, episode, OPEN if usual is None else usual.seal)
        evidence: dict[str, Any] = {"exit_code": course.exit_code, "output": course.output}
        if seen := course.seen_beyond(usual):
            evidence[SEEN] = {kind: what[:MAX_OF_KIND] for kind, what in seen.items()}
        if not course.witnessed:
            evidence["python"] = "how Pythons end was not seen"
        if ends := course.unsound_ends(usual):
            detail = f"{', '.join(ends)}: {ADVICE}"
            evidence |= {"verifier": str(ReasonCode.VERIFIER_NO_RESULT), "detail": detail}
            message = f"the check did not come to its end: {detail}"
            return failed(ReasonCode.WRONG_ANSWER, message, evidence=evidence)
        reward = read_reward(course.files)
        if reward is None:
            message = f"the script ended with code {course.exit_code} and left no reward; it said: "
            raise NoResult(ReasonCode.VERIFIER_NO_RESULT, message + (course.output or "nothing"))
        evidence = {"reward": reward, **evidence}
        if (
            reward > 0
            and usual is not None
            and (found := deviation(course, usual, is_full=reward >= usual_reward(usual)))
        ):
            message = f"the reward is not the script's own: {found}"
            return failed(ReasonCode.TAMPER_DETECTED, message, evidence={**evidence, "not_as_the_reference": found})
        if reward >= self.config.pass_reward:
            return passed(score=reward, evidence=evidence)
        return failed(ReasonCode.WRONG_ANSWER, f"the script's reward is {reward:g}", score=reward, evidence=evidence)

    def contract(self, task: TaskBundle) -> EnvironmentContract:
        """The verifier's share of the task's contract, with the places where the script looks for files."""
        links = {"/tests": TESTS, "/logs": LOGS}
        if self.config.workdir != WORKSPACE:
            links[self.config.workdir] = APP
        limits = task.contract.limits
        room = max(limits.output_bytes, OUTPUT_BYTES)
        limits = msgspec.structs.replace(limits, tool_timeout_seconds=limits.verify_timeout_seconds, output_bytes=room)
        environment = {**task.contract.environment, **self.config.environment, "PYTHONNOUSERSITE": "1"}
        granted = task.contract.for_verifier(limits)
        return msgspec.structs.replace(granted, links=links, environment=environment, programs=witness_programs())

    async def _run(self, task: TaskBundle, episode: FinishedEpisode, seal: Seal) -> Course:
        """One run of the script; `seal`: what its Pythons cannot write."""
        sandbox = self.backend.create(self.contract(task))
        try:
            await sandbox.start()
            try:
                return await self._run_in(sandbox, task, episode, seal)
            except WorkerError as error:
                raise SandboxDied(ReasonCode.VERIFIER_CRASH, f"the verifier's sandbox ended: {error}") from error
        finally:
            await sandbox.close()

    async def _run_in(self, sandbox: Sandbox, task: TaskBundle, episode: FinishedEpisode, seal: Seal) -> Course:
        files = {f"{APP}/{path}": data for path, data in episode.files.items()}
        files |= {f"{TESTS}/{path}": text.encode() for path, text in self.spec.files.items()}
        keep = [f"{folder}/.keep" for folder in (APP, f"{LOGS}/verifier")]
        for path, data in {**files, **dict.fromkeys(keep, b"")}.items():
            await sandbox.write(path, data)
        runnable = [path for path, data in files.items() if data.startswith(EXECUTABLE)]
        if runnable:
            await sandbox.exec(["chmod", "+x", "--", *runnable])
        await sandbox.exec(["rm", "-f", *keep])
        workspace_fd = getattr(sandbox, "workspace_fd", -1)
        watch = FolderWatch(workspace_fd, f"{LOGS}/verifier", REWARDS) if workspace_fd >= 0 else None
        try:
            done = await sandbox.run_python(
                OVERSEER,
                function="call",
                arguments={
                    "app": APP, "tests": TESTS, "logs": LOGS, "home": HOME, "script": self.config.script,
                    "allow": None if seal.logs is None else list(seal.logs), "strict": seal.strict,
                },
                timeout_seconds=task.contract.limits.verify_timeout_seconds,
            )  # fmt: skip
        finally:
            history = None if watch is None else watch.close()
        return read_course(done, history, seal, task.contract.limits.verify_timeout_seconds)


def read_course(done: ExecResult, history: History | None, seal: Seal, timeout: float) -> Course:
    """What the overseer says of a run. Raises NoResult where it says nothing."""
    tail = done.stderr.strip()[-TAIL:]
    if done.timed_out:
        raise NoResult(ReasonCode.VERIFIER_TIMEOUT, f"the script did not end within {timeout:g} s; it said: {tail}")
    if done.limit_hit in ("memory", "cpu", "output"):
        raise NoResult(ReasonCode.VERIFIER_CRASH, f"the script was stopped at its {done.limit_hit} limit")
    try:
        told = msgspec.json.decode(done.stdout, type=dict[str, Any]) if done.exit_code == 0 else None
    except (ValueError, RecursionError):
        told = None
    if told is None:
        message = f"the script's run was ended from inside (code {done.exit_code}); it said: {tail or 'nothing'}"
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, message)
    return Course(
        exit_code=told["exit_code"], output=tail, ends=tuple((how, main) for how, main in told["ends"]),
        files=told["files"], changed=frozenset(told["changed"]), logs=tuple(told["logs"]),
        witnessed=told["witnessed"], histories=() if history is None else (history,), seal=seal,
        made=frozenset(told["made"]), seen=frozenset((kind, what) for kind, what in told["seen"]),
        passed=frozenset(told["passed"]), num_passed=told["num_passed"],
    )  # fmt: skip


def read_reward(files: dict[str, dict[str, Any]]) -> float | None:
    """The reward that the script left; None where there is none. Raises NoResult for one that is unsound."""
    texts = {name: seen["text"] for name, seen in files.items() if seen["text"] is not None}
    if REWARD_TEXT in texts:
        return _sound(texts[REWARD_TEXT].strip(), REWARD_TEXT)
    if REWARD_JSON not in texts:
        return None
    try:
        found: Any = json.loads(texts[REWARD_JSON])
    except (ValueError, RecursionError) as error:
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, f"{REWARD_JSON} is no JSON: {error}") from error
    if isinstance(found, dict):
        found = found.get("reward", next(iter(found.values())) if len(found) == 1 else None)
    return _sound(found, REWARD_JSON)


def usual_reward(usual: Course) -> float:
    """The reference's; one that is unsound is above all others."""
    try:
        reward = read_reward(usual.files)
    except NoResult:
        return math.inf
    return math.inf if reward is None else reward


def _sound(value: Any, where: str) -> float:
    try:
        reward = float("nan") if isinstance(value, bool) or not isinstance(value, str | int | float) else float(value)
    except ValueError:
        reward = float("nan")
    if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, f"{where}: {str(value)[:60]!r} is no number from 0 to 1")
    return reward
