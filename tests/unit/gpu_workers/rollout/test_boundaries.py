"""One test a boundary: what breaks outside the policy never becomes a reward, and a policy's time-out never a pass."""

import asyncio
import itertools
import math

import msgspec
import pytest

from gpu_workers.contracts.enums import (
    NO_REWARD_REASONS,
    UNSCORED_VERDICTS,
    Boundary,
    ReasonCode,
    StopReason,
    Verdict,
    VerifierKind,
)
from gpu_workers.contracts.groups import GroupTranscript, SandboxRecord, ToolCallRecord, decode_group
from gpu_workers.contracts.seams import FinishedEpisode, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, Limits, Message, TaskBundle, VerifierSpec
from gpu_workers.rollout.group import run_group
from gpu_workers.verifiers.results import NoResult, SandboxDied, failed, passed
from gpu_workers.verifiers.runner import VerifierRunner
from tests.unit.gpu_workers.rollout.conftest import World

# Whose failure an error at this boundary is: a policy cannot raise one, so its name means a task that cannot be had.
OWNER = {boundary: boundary for boundary in Boundary} | {Boundary.POLICY: Boundary.ENVIRONMENT}


class BrokenWorld:
    """An environment that fails in one place."""

    def __init__(self, place: str, error: WorkerError) -> None:
        self.place, self.error = place, error
        self.record = SandboxRecord()

    def _maybe(self, place: str) -> None:
        if place == self.place:
            raise self.error

    async def reset(self) -> None:
        self._maybe("reset")

    async def step(self, name: str, arguments: dict) -> ToolCallRecord:
        self._maybe("step")
        return ToolCallRecord(name=name, arguments=arguments, result=f"<q={arguments['q']}>")

    async def state(self) -> dict[str, bytes]:
        self._maybe("state")
        return {}

    async def close(self) -> None:
        pass


def look_then_yes(episode: int, conversation: str) -> str:
    return "yes" if "<q=" in conversation else 'look(q="a")'


async def run(world: World, task: TaskBundle, services, size: int = 2, **changes):
    report = await run_group(world.job(task, group_size=size, **changes), services)
    transcript = GroupTranscript.decode(world.store.get(report.transcript)) if report.transcript else None
    return report, transcript.episodes if transcript else []


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("place", ["reset", "step", "state", "engine", "verifier"])
async def test_a_failure_at_any_boundary_in_any_place_has_no_reward(
    world: World, task: TaskBundle, place: str, boundary: Boundary
) -> None:
    error = WorkerError(boundary, f"broken {place}")

    def script(episode: int, conversation: str) -> str:
        if place == "engine" and episode == 0:
            raise error
        return look_then_yes(episode, conversation)

    world.engine(script)
    if place == "verifier":
        world.verifier.error = error
    # PROGRAM, so that the workspace is read; the judge is the world's own.
    task = msgspec.structs.replace(task, verifier=VerifierSpec(kind=VerifierKind.PROGRAM, program="x"))
    services = world.services()
    worlds = iter([place, ""])
    object.__setattr__(services, "make_environment", lambda task: BrokenWorld(next(worlds), error))
    report, episodes = await run(world, task, services)
    broken = episodes[0]
    assert (broken.verdict, broken.reward, broken.success) == (Verdict.ERROR, None, False)
    assert broken.boundary is OWNER[boundary]
    assert broken.reason_code in NO_REWARD_REASONS
    assert f"broken {place}" in broken.message
    if place == "verifier":
        assert report.uri == "" and f"broken {place}" in report.error
    else:
        assert (episodes[1].verdict, episodes[1].reward) == (Verdict.PASS, 1.0), "the other episode is scored"
        assert [tokens.reward for tokens in decode_group(world.store.get(report.uri))] == [None, 1.0]


SCORES = (None, 0.0, 0.5, 1.0, 1, -0.1, 1.5, math.nan, math.inf, -math.inf, True, "1")
SAID = list(itertools.product(("pass", "fail", "error", "quarantined", "PASSED"), ReasonCode, SCORES))


def is_sound(verdict: str, reason: ReasonCode, score: object) -> bool:
    if verdict not in ("pass", "fail") or reason in NO_REWARD_REASONS or (verdict == "pass") != (reason == "OK"):
        return False
    return type(score) in (int, float) and math.isfinite(score) and 0 <= score <= 1


async def test_only_a_sound_result_of_a_verifier_is_a_reward(world: World, task: TaskBundle) -> None:
    class Says:
        async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
            return VerifierResult(*[SAID[int(episode.answer)][i] for i in (0, 2, 1)], message="m")

    world.verifier = Says()
    world.engine(lambda episode, _: str(episode))
    _, episodes = await run(world, task, world.services(), size=len(SAID))
    assert len(episodes) == len(SAID)
    assert sum(is_sound(*said) for said in SAID) == 4 * (
        1 + sum(r != "OK" and r not in NO_REWARD_REASONS for r in ReasonCode)
    )
    for said, episode in zip(SAID, episodes, strict=True):
        verdict, reason, score = said
        if is_sound(*said):
            assert (episode.verdict, episode.reward) == (verdict, score), said
            assert episode.reason_code == reason
            assert episode.boundary is (None if verdict == "pass" else Boundary.POLICY)
        else:
            assert episode.verdict in UNSCORED_VERDICTS and episode.reward is None and not episode.success, said
            assert episode.reason_code in NO_REWARD_REASONS
            assert episode.boundary is not Boundary.POLICY
        assert (episode.verification.score is None) == (episode.reward is None)
    quarantined = {
        e.verdict for s, e in zip(SAID, episodes, strict=True) if s == ("quarantined", "VERIFIER_FLAKY", None)
    }
    assert quarantined == {Verdict.QUARANTINED}


class Kind:
    """A kind of verifier that does one thing to the candidate `yes` and another to the reference."""

    def __init__(self, on_candidate: object, on_reference: object) -> None:
        self.outcomes = {"yes": on_candidate, "ref": on_reference}
        self.asked: list[str] = []

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        self.asked.append(episode.answer)
        outcome = self.outcomes[episode.answer]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


NOTHING = [
    *(NoResult(ReasonCode(reason), "nothing") for reason in ReasonCode if reason.startswith("VERIFIER_")),
    NoResult(ReasonCode.RESOURCE_LIMIT, "too large"),
    SandboxDied(ReasonCode.VERIFIER_CRASH, "died"),
    RecursionError("deep"),
    VerifierResult("pass", math.nan, "OK"),
    VerifierResult("pass", 1.5, "OK"),
    VerifierResult("pass", 1.0, "VERIFIER_CRASH"),
    VerifierResult("fail", None, "WRONG_ANSWER"),
    VerifierResult("great", 1.0, "OK"),
]
BROKEN_ON_REFERENCE = [*NOTHING, failed(ReasonCode.WRONG_ANSWER, "wrong")]


def with_reference(task: TaskBundle) -> TaskBundle:
    return msgspec.structs.replace(task, reference=[Message(role="assistant", content="ref")])


@pytest.mark.parametrize("on_candidate", NOTHING, ids=repr)
async def test_without_a_result_the_reference_decides_whose_fault_it_is(
    world: World, task: TaskBundle, on_candidate: object
) -> None:
    world.engine(lambda *_: "yes")
    for on_reference in BROKEN_ON_REFERENCE:
        kind = Kind(on_candidate, on_reference)
        world.verifier = VerifierRunner(task.verifier, kind, world.backend)
        _, episodes = await run(world, with_reference(task), world.services(), size=3)
        assert [(e.verdict, e.reward) for e in episodes] == [(Verdict.ERROR, None)] * 3, on_reference
        assert {e.boundary for e in episodes} == {Boundary.VERIFIER}
        tries = 2 if isinstance(on_reference, SandboxDied) else 1
        assert kind.asked.count("ref") == tries, "a broken verifier is found out once for the whole group"
    kind = Kind(on_candidate, passed())
    world.verifier = VerifierRunner(task.verifier, kind, world.backend)
    _, episodes = await run(world, with_reference(task), world.services(), size=3)
    assert [(e.verdict, e.reward) for e in episodes] == [(Verdict.FAIL, 0.0)] * 3
    assert {e.boundary for e in episodes} == {Boundary.POLICY}
    assert not {e.reason_code for e in episodes} & NO_REWARD_REASONS


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("where", ["candidate", "reference"])
async def test_what_a_verifier_stands_on_may_break_under_it(
    world: World, task: TaskBundle, where: str, boundary: Boundary
) -> None:
    world.engine(lambda *_: "yes")
    error = WorkerError(boundary, "gone")
    kind = Kind(error if where == "candidate" else NoResult(ReasonCode.VERIFIER_CRASH, "x"), error)
    world.verifier = VerifierRunner(task.verifier, kind, world.backend)
    _, episodes = await run(world, with_reference(task), world.services())
    assert [(e.verdict, e.reward) for e in episodes] == [(Verdict.ERROR, None)] * 2
    assert {e.boundary for e in episodes} == {OWNER[boundary]}
    assert all("gone" in e.message for e in episodes)


async def test_without_a_reference_nobody_is_blamed(world: World, task: TaskBundle) -> None:
    world.engine(lambda *_: "yes")
    kind = Kind(NoResult(ReasonCode.VERIFIER_TIMEOUT, "hung"), passed())
    world.verifier = VerifierRunner(task.verifier, kind, world.backend)
    _, episodes = await run(world, task, world.services())
    assert [(e.verdict, e.reward, e.reason_code) for e in episodes] == [("error", None, "VERIFIER_TIMEOUT")] * 2


async def test_a_sandbox_that_dies_once_costs_nobody_anything(world: World, task: TaskBundle) -> None:
    class DiesOnce(Kind):
        async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
            self.asked.append(episode.answer)
            if len(self.asked) == 1:
                raise SandboxDied(ReasonCode.VERIFIER_CRASH, "the host ran out of memory")
            return passed()

    world.engine(lambda *_: "yes")
    kind = DiesOnce(None, None)
    world.verifier = VerifierRunner(task.verifier, kind, world.backend)
    _, episodes = await run(world, with_reference(task), world.services(), size=1)
    assert (episodes[0].verdict, kind.asked) == ("pass", ["yes", "yes"])


async def test_runs_that_disagree_quarantine(world: World, task: TaskBundle) -> None:
    class Flaky(Kind):
        async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
            self.asked.append(episode.answer)
            return passed() if len(self.asked) % 3 else failed(ReasonCode.WRONG_ANSWER, "not this time")

    world.engine(lambda *_: "yes")
    spec = VerifierSpec(kind=VerifierKind.EXACT, expected="yes", repeats=3)
    world.verifier = VerifierRunner(spec, Flaky(None, None), world.backend)
    _, episodes = await run(world, task, world.services(), size=1)
    episode = episodes[0]
    assert (episode.verdict, episode.reward, episode.reason_code) == ("quarantined", None, "VERIFIER_FLAKY")
    assert episode.boundary is Boundary.VERIFIER
    assert episode.evidence["runs"] == ["pass 1 OK", "pass 1 OK", "fail 0 WRONG_ANSWER"]


@pytest.mark.parametrize("word", [passed(), failed(ReasonCode.WRONG_ANSWER, "x", score=0.5), None])
@pytest.mark.parametrize("sandbox_dies", [False, True])
async def test_a_policys_time_out_is_a_failure_whatever_the_verifier_would_say(
    world: World, task: TaskBundle, word: VerifierResult | None, sandbox_dies: bool
) -> None:
    asked = []

    class Eager:
        async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
            asked.append(episode)
            if word is None:
                raise WorkerError(Boundary.VERIFIER, "broken")
            return word

    class Slow(BrokenWorld):
        async def step(self, name: str, arguments: dict) -> ToolCallRecord:
            await asyncio.sleep(5)
            raise AssertionError("never reached")

    world.engine(look_then_yes)
    world.verifier = Eager()
    spec = VerifierSpec(kind=VerifierKind.PROGRAM, program="x")
    contract = EnvironmentContract(limits=Limits(episode_timeout_seconds=0.05))
    task = msgspec.structs.replace(task, contract=contract, verifier=spec, audit_verifier=spec)
    services = world.services()
    dies = "state" if sandbox_dies else ""
    error = WorkerError(Boundary.INFRASTRUCTURE, "the sandbox died")
    object.__setattr__(services, "make_environment", lambda task: Slow(dies, error))
    object.__setattr__(services, "audit", lambda task: Eager())
    report, episodes = await run(world, task, services)
    for episode in episodes:
        assert episode.stop_reason is StopReason.TIMEOUT
        assert (episode.verdict, episode.reward, episode.success) == (Verdict.FAIL, 0.0, False)
        assert (episode.reason_code, episode.boundary) == (ReasonCode.AGENT_TIMEOUT, Boundary.POLICY)
    assert asked == []
    assert [tokens.reward for tokens in decode_group(world.store.get(report.uri))] == [0.0, 0.0]


class TestAudit:
    @pytest.mark.parametrize(
        "said",
        [passed(), failed(ReasonCode.WRONG_ANSWER, "hard-coded"), VerifierResult("pass", math.nan, "OK"),
         *(WorkerError(boundary, "gone") for boundary in Boundary)],
        ids=repr,
    )  # fmt: skip
    async def test_it_is_recorded_and_never_a_reward(self, world: World, task: TaskBundle, said: object) -> None:
        world.engine(lambda episode, _: "yes" if episode % 2 else "no")
        spec = VerifierSpec(kind=VerifierKind.EXACT, expected="yes")
        task = msgspec.structs.replace(task, audit_verifier=spec)
        services = world.services()
        object.__setattr__(services, "audit", lambda task: Always(said))
        _, episodes = await run(world, task, services, size=4)
        assert [e.reward for e in episodes] == [0.0, 1.0, 0.0, 1.0]
        for episode in episodes:
            assert episode.audit is not None
            scored = isinstance(said, VerifierResult) and said.score in (0.0, 1.0)
            assert (episode.audit.score is not None) == scored
            assert episode.audit.verdict == (said.verdict if scored else "error")

    async def test_its_share_of_the_episodes_is_kept_and_repeatable(self, world: World, task: TaskBundle) -> None:
        world.engine(lambda *_: "yes")
        spec = VerifierSpec(kind=VerifierKind.EXACT, expected="yes")
        task = msgspec.structs.replace(task, audit_verifier=spec)
        services = world.services()
        object.__setattr__(services, "audit", lambda task: Always(passed()))
        seen = []
        for share in (0.0, 0.25, 0.25, 1.0):
            _, episodes = await run(world, task, services, size=200, audit_share=share)
            seen.append([e.index for e in episodes if e.audit is not None])
        assert seen[0] == [] and len(seen[3]) == 200
        assert seen[1] == seen[2] and 30 <= len(seen[1]) <= 70

    async def test_a_task_without_one_is_not_audited(self, world: World, task: TaskBundle) -> None:
        world.engine(lambda *_: "yes")
        _, episodes = await run(world, task, world.services())
        assert [e.audit for e in episodes] == [None, None]


class Always:
    def __init__(self, said: object) -> None:
        self.said = said

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said
