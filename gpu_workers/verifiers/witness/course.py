"""The course of a script's run, and in what a candidate's differs from the reference's. Pure but for `Courses`."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.reference import reference_episode
from gpu_workers.verifiers.results import NoResult, SandboxDied, TaskError
from gpu_workers.verifiers.witness import overseer
from gpu_workers.verifiers.witness.history import History

UNSOUND_ENDS = {"gone": "left without a word", "exit": "was ended by the candidate's exit", "code": "said another code",
                "skip": "was skipped by the candidate's code"}  # fmt: skip
BY_WHOM = {
    "changed": "replaced",
    "pleased": "equal",
}  # what may be the check's own doing, where nothing tells otherwise
REWARDS = ("verifier/reward.txt", "verifier/reward.json")
MANY = overseer.MAX_PASSED
APP = "/workspace/app"
MAX_ALLOWED = 20
MAX_KNOWN = 2000  # courses that a worker keeps


@dataclass(frozen=True)
class Seal:
    """What Pythons of a run cannot write: of the logs all but `logs` (None: they are open); `strict`: the tests' tree.

    Under a strict seal programs of the policy's read no file of the tests but those that they are given, too.
    """

    logs: tuple[str, ...] | None = None
    strict: bool = False


OPEN = Seal()


@dataclass(frozen=True)
class Course:
    """How one run of a script went."""

    exit_code: int  # of the script; negative: the signal that ended it
    output: str
    ends: tuple[tuple[str, str], ...]  # (how, main program) of Pythons that did not end with 0 by themselves
    files: dict[str, dict[str, Any]]  # reward file -> mode, links, text
    changed: frozenset[str]  # files of the tests that are not as they were
    logs: tuple[str, ...]  # files in the logs
    witnessed: bool  # Pythons were
    histories: tuple[History, ...]  # of the reward files, of each run; none: this host or sandbox cannot say
    seal: Seal  # what Pythons could not write
    passed: frozenset[str] = frozenset()  # tests of pytest and unittest, by file and name, but the policy's own
    made: frozenset[str] = frozenset()  # files that are new among the tests
    seen: frozenset[tuple[str, str]] = frozenset()  # (kind, what) that the policy's code did, by the watch
    num_passed: int = 0  # of which the names are not told where there are more than MANY

    def unsound_ends(self, usual: "Course | None") -> list[str]:
        """Ends with 0 that were none of the check's own and that the reference's run has not had as well, in words."""
        beyond = self.ends_beyond(usual)
        return [f"{main} {UNSOUND_ENDS[how]}" for how, main in beyond if how in UNSOUND_ENDS]

    def seen_beyond(self, usual: "Course | None") -> dict[str, list[str]]:
        """What the policy's code did and the reference does not, by kind."""
        found: dict[str, list[str]] = {}
        for kind, what in sorted(self.seen - (usual.seen if usual else frozenset())):
            if kind not in BY_WHOM or usual is not None:
                found.setdefault(BY_WHOM.get(kind, kind), []).append(what)
        return found

    def ends_beyond(self, usual: "Course | None") -> Counter[tuple[str, str]]:
        return Counter(self.ends) - Counter(usual.ends if usual else ())


def deviation(course: Course, usual: Course, *, is_full: bool) -> str:
    """What was done to the reward or the tests that the reference's run does not do; empty where nothing was.

    `is_full`: the reward is no less than the reference's. Then the script goes the same way, to the letter.
    """
    if course.exit_code < 0 <= usual.exit_code:
        return f"the script was ended by signal {-course.exit_code}"
    if changed := course.changed - usual.changed:
        return f"files of the tests were touched: {', '.join(sorted(changed)[:5])}"
    if made := course.made - usual.made:
        return f"files were put among the tests: {', '.join(sorted(made)[:5])}"
    for name, seen in course.files.items():
        wanted = usual.files.get(name)
        if wanted is None:
            return f"{name} is there, which the reference's run does not leave"
        for what in ("mode", "links"):
            if seen[what] != wanted[what]:
                return f"the {what} of {name}: {seen[what]} instead of {wanted[what]}"
    if is_full and (missing := usual.passed - course.passed):
        return f"tests did not pass that pass with the reference: {', '.join(sorted(missing)[:5])}"
    if is_full and course.num_passed < usual.num_passed and usual.num_passed > MANY:
        return f"{course.num_passed} tests passed instead of {usual.num_passed}"
    if is_full and usual.seal.logs is None:  # a Python writes the reward, and the candidate's code may run in it
        for how, main in course.ends_beyond(usual):
            return f"{main} ended otherwise ({how})"
        if course.exit_code != usual.exit_code:
            return f"the script ended with code {course.exit_code} instead of {usual.exit_code}"
    for history in course.histories:
        if found := _strange(history, usual.histories, is_full=is_full):
            return found
    return ""


def _strange(history: History, usual: tuple[History, ...], *, is_full: bool) -> str:
    if not usual or (is_full and history in usual):
        return ""
    most = Counter(usual[0])
    for other in usual[1:]:
        most |= Counter(other)
    for (name, happened), times in (Counter(history) - most).items():
        least = most[name, happened]
        return f"{name or 'the reward files'}: {happened}, {least + times} times instead of {least}"
    return f"what happened to the reward files came in another order: {_listed(history)}" if is_full else ""


def _listed(history: History) -> str:
    return ", ".join(f"{happened} {name}" for name, happened in history[:20])


Run = Callable[[TaskBundle, FinishedEpisode, Seal], Awaitable[Course]]


class Courses:
    """The reference's course of each task, taken when it is first asked for and then known to the whole worker."""

    _known: WeakKeyDictionary[SandboxBackend, dict[str, Course]] = WeakKeyDictionary()

    def __init__(self, backend: SandboxBackend, run: Run, spec: VerifierSpec) -> None:
        self.backend = backend
        self.run = run
        self.spec = spec
        self._asking = asyncio.Lock()
        self._without: set[str] = set()  # tasks, for this verifier alone: the next one tries again

    async def of(self, task: TaskBundle) -> Course | None:
        """None where there is no reference, or its run leaves no reward."""
        key = hashlib.sha256(msgspec.json.encode([task, self.spec])).hexdigest()
        known = self._known.setdefault(self.backend, {})
        async with self._asking:
            if key in known or key in self._without:
                return known.get(key)
            course = await self._take(task)
            if course is None:
                self._without.add(key)
                return None
            if len(known) >= MAX_KNOWN:
                known.pop(next(iter(known)))
            known[key] = course
            return course

    async def _take(self, task: TaskBundle) -> Course | None:
        """A run in which Pythons write what they want; then one under the tightest seal that changes nothing."""
        try:
            episode = await reference_episode(task, self.backend)
            free = await self.run(task, episode, OPEN)
        except SandboxDied:
            raise
        except (TaskError, NoResult):
            return None
        if not free.files:
            return None
        own = {f"{APP}/{path}" for path in episode.files}  # tests that another may write otherwise
        free = replace(free, passed=frozenset(test for test in free.passed if test.partition("::")[0] not in own))
        for seal in seals(free):
            try:
                sealed = await self.run(task, episode, seal)
            except SandboxDied:
                raise
            except NoResult as problem:
                if problem.reason is ReasonCode.VERIFIER_TIMEOUT:
                    return None
                continue
            if texts(sealed) != texts(free) or free.made - sealed.made:
                continue
            both = free.passed & sealed.passed  # a name that changes from run to run asks for nothing
            fewer = min(free.num_passed, sealed.num_passed)
            return replace(
                sealed, histories=free.histories + sealed.histories, passed=both, num_passed=fewer,
                seen=free.seen | sealed.seen, made=free.made | sealed.made,
            )  # fmt: skip
        return free


def seals(free: Course) -> list[Seal]:
    """What may be sealed for a task whose open run was `free`, the tightest first."""
    others = tuple(name for name in free.logs if name not in REWARDS)
    if len(others) > MAX_ALLOWED or any(":" in name or "\n" in name for name in others):
        return [Seal(None, strict=True)]
    return [Seal(others, strict=True), Seal(None, strict=True), Seal(others)]


def texts(course: Course) -> dict[str, Any]:
    return {name: seen["text"] for name, seen in course.files.items()}
