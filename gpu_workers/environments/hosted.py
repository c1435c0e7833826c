"""Third-party environments behind our seams: steps in a live host, verdicts by playing the episode again."""

import math
import time
from collections.abc import Sequence
from typing import Any

from gpu_workers.contracts.enums import Boundary, ReasonCode
from gpu_workers.contracts.groups import SandboxRecord, ToolCallRecord
from gpu_workers.contracts.seams import FinishedEpisode, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import HostedEnvironment, TaskBundle, ToolSpec
from gpu_workers.environments.process import HostGone, HostProcess, Hosts
from gpu_workers.rollout.arguments import check_call
from gpu_workers.sessions.tool_calls import TurnKind, read_turn
from gpu_workers.verifiers.results import NoResult, TaskError, failed, passed

START_SECONDS = 120.0  # of an episode: an environment may prepare data or start servers of its own
ENDED = "The environment has ended the episode."
MAX_SHOWN = 500
MAX_ERRORS = 3


class Session:
    """One episode in a host. Raises HostGone; WorkerError(ENVIRONMENT) for what the environment itself did wrong."""

    def __init__(self, host: HostProcess, hosted: HostedEnvironment, call_seconds: float) -> None:
        self.host = host
        self.hosted = hosted
        self.call_seconds = call_seconds
        self.ending: dict[str, Any] | None = None

    async def start(self) -> None:
        request = {
            "op": "start", "id": self.hosted.id, "config": self.hosted.config, "index": self.hosted.index,
            "digest": self.hosted.digest,
        }  # fmt: skip
        self._take(await self.host.request(request, START_SECONDS))

    async def reply(self, text: str, calls: Sequence[tuple[str, dict[str, Any]]] = ()) -> str:
        """A turn of the policy; what the environment says to it."""
        message = {"op": "reply", "text": text, "calls": [{"name": n, "arguments": a} for n, a in calls]}
        answer = self._take(await self.host.request(message, self.call_seconds))
        return "\n".join(str(message.get("content", "")) for message in answer.get("messages", ()))

    def _take(self, answer: dict[str, Any]) -> dict[str, Any]:
        if answer["event"] == "error":
            text = f"{self.hosted.kind} {self.hosted.id}: {answer.get('message', '')}"[:MAX_SHOWN]
            raise WorkerError(Boundary.ENVIRONMENT, text, retryable=answer.get("boundary") != "task")
        if answer["event"] == "end":
            self.ending = answer
        return answer


class HostedToolEnvironment:
    """Implements contracts.seams.Environment. The host is taken with the first call, as a sandbox would be."""

    def __init__(self, hosts: Hosts, task: TaskBundle) -> None:
        assert task.hosted is not None
        self._hosts = hosts
        self._hosted = task.hosted
        self._limits = task.contract.limits
        self._session: Session | None = None
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._gone = ""  # why there is no environment any more
        self._closed = False
        self._log: list[str] = []
        self._isolation = ""

    async def reset(self) -> None:
        await self._drop()
        self._closed, self._gone, self._calls = False, "", []

    async def step(self, name: str, arguments: dict[str, Any]) -> ToolCallRecord:
        """One call. What the environment refuses is an observation; a call without an answer in time ends it."""
        if self._closed:
            raise RuntimeError("step after close")
        started = time.monotonic()
        record = ToolCallRecord(name=name, arguments=arguments)
        if self._gone:
            record.ok, record.error, record.result = False, self._gone, f"Error: {self._gone}"
            return record
        session = await self._ready()
        if session.ending is not None:
            record.ok, record.error, record.result = False, ENDED, ENDED
            return record
        self._calls.append((name, arguments))
        try:
            record.result = await session.reply("", self._calls[-1:])
        except (HostGone, WorkerError) as error:
            self._gone = await self._blame(session, error)
            record.ok, record.error, record.result = False, self._gone, f"Error: {self._gone}"
        if session.ending is not None:
            record.result = f"{record.result}\n{ENDED}".strip()
        record.duration_seconds = time.monotonic() - started
        self._log.append(f"{name} -> {'ok' if record.ok else record.error}, {record.duration_seconds:.4f} s")
        return record

    async def _blame(self, session: Session, error: HostGone | WorkerError) -> str:
        """What the policy is told of a call that broke the environment. Raises WorkerError where it was not the call.

        The calls are made again in a fresh environment: one that breaks again was broken by what the policy did.
        """
        if isinstance(error, HostGone) and error.timed_out:
            return f"the call took more than {session.call_seconds:g} s: the environment was ended"
        await self._drop()
        again = await self._ready()
        try:
            for call in self._calls:
                await again.reply("", [call])
        except (HostGone, WorkerError):
            return f"the call broke the environment: {error}"[:MAX_SHOWN]
        raise WorkerError(Boundary.ENVIRONMENT, f"the environment broke, not for its calls: {error}") from error

    async def state(self) -> dict[str, bytes]:
        """No files: the state is the environment's own."""
        return {}

    async def close(self) -> None:
        self._closed = True
        await self._drop()

    @property
    def record(self) -> SandboxRecord:
        if not self._log:
            return SandboxRecord()
        return SandboxRecord(backend=f"host {self._hosted.kind}", isolation=self._isolation, log="\n".join(self._log))

    async def _ready(self) -> Session:
        if self._session is None:
            host = await self._hosts.take(self._hosted.kind)
            # Kept before it starts: a host that fails half-way is still given back.
            self._session = Session(host, self._hosted, self._limits.tool_timeout_seconds)
            self._isolation = host.isolation
            self._log.append(f"start {self._hosted.id}, task {self._hosted.index}, {self._hosted.framework}")
            try:
                await self._session.start()
            except HostGone as gone:
                raise WorkerError(Boundary.ENVIRONMENT, f"the environment did not start: {gone}") from gone
        return self._session

    async def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await self._hosts.give_back(session.host)
            self._log.append("end: closed")


class HostedVerifier:
    """Implements contracts.seams.Verifier: the framework's own reward for the policy's turns, played again.

    The episode's environment is not asked: what happened to it counts for nothing. Raises NoResult, WorkerError.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        hosted = task.hosted
        if hosted is None:
            raise TaskError("verifier.kind: environment is for tasks of a hosted environment")
        if not hosted.min_reward < hosted.max_reward or not hosted.min_reward < hosted.pass_reward <= hosted.max_reward:
            raise TaskError("hosted: needs min_reward < pass_reward <= max_reward")
        host = await self.hosts.take(hosted.kind)
        try:
            session = Session(host, hosted, task.contract.limits.verify_timeout_seconds)
            num_different = await play_again(session, task, episode)
        except HostGone as gone:
            reason = ReasonCode.VERIFIER_TIMEOUT if gone.timed_out else ReasonCode.VERIFIER_CRASH
            raise NoResult(reason, str(gone)) from gone
        except WorkerError as error:
            if error.retryable:  # it broke on these turns: whose fault that is remains to be found out
                raise NoResult(ReasonCode.VERIFIER_CRASH, str(error)) from error
            raise
        finally:
            await self.hosts.give_back(host)
        return judge(hosted, session.ending, num_different)


async def play_again(session: Session, task: TaskBundle, episode: FinishedEpisode) -> int:
    """Play the policy's turns until the environment ends or they do; the number of observations that differ."""
    await session.start()
    num_different = 0
    turns = [(i, m) for i, m in enumerate(episode.messages) if m["role"] == "assistant" and i >= len(task.prompt)]
    for position, message in turns:
        if session.ending is not None:
            return num_different
        reading = read_turn(str(message["content"]), task.tools, task.tool_format)
        if reading.kind is TurnKind.ANSWER or reading.call is None:
            continue  # the last word is said below; what could not be read never reached the environment
        call = check_call(reading.call, task.tools)
        following = episode.messages[position + 1 : position + 2]
        if call.error or not following or following[0]["role"] != "tool":
            continue  # refused, or the turns ran out before it was executed
        said = await session.reply("", [(call.name, call.arguments)])
        num_different += str(following[0]["content"])[:MAX_SHOWN] not in (
            said[:MAX_SHOWN],
            f"{said}\n{ENDED}"[:MAX_SHOWN],
        )
    if session.ending is None:
        await session.reply(episode.answer)
    return num_different


def judge(hosted: HostedEnvironment, ending: dict[str, Any] | None, num_different: int) -> VerifierResult:
    """The verdict of an ending. Raises NoResult where there is no sound reward."""
    if ending is None:
        return failed(ReasonCode.TURN_LIMIT, "the environment wants to go on after the policy's last turn")
    errors = "; ".join(map(str, ending.get("errors", ())[:MAX_ERRORS]))[:MAX_SHOWN]
    reward = ending.get("reward")
    if not ending.get("ok") or reward is None:
        raise NoResult(
            ReasonCode.VERIFIER_NO_RESULT, f"the environment gave no reward: {errors or ending.get('stop', '')}"
        )
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, f"the environment's reward is {reward!r}")
    if reward > hosted.max_reward:
        message = f"the environment's reward {reward:g} is more than max_reward {hosted.max_reward:g}"
        raise NoResult(ReasonCode.VERIFIER_NO_RESULT, message)
    score = max(0.0, (reward - hosted.min_reward) / (hosted.max_reward - hosted.min_reward))
    evidence = {"reward": reward, "rewards": ending.get("rewards", {}), "stop": str(ending.get("stop", ""))[:100]}
    if num_different:
        evidence["observations_that_differ"] = num_different
    if reward >= hosted.pass_reward:
        return passed(f"reward {reward:g}", score=score, evidence=evidence)
    message = f"reward {reward:g} is below {hosted.pass_reward:g}"
    return failed(ReasonCode.WRONG_ANSWER, message, score=score, evidence=evidence)


def tools_of(described: Sequence[dict[str, Any]]) -> list[ToolSpec]:
    """Tools as a host describes them, in the chat format, as a task declares them."""
    return [
        ToolSpec(
            name=tool["function"]["name"],
            description=tool["function"].get("description", ""),
            parameters=tool["function"].get("parameters") or {"type": "object", "properties": {}},
        )
        for tool in described
    ]
