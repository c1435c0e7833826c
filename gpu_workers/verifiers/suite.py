"""Verifier that runs a task author's test suite against the candidate's files, in a fresh sandbox of its own."""

import base64
import fnmatch
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.groups import ComponentRecord
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.contracts.text import storable
from gpu_workers.verifiers.leaning import Leaning
from gpu_workers.verifiers.program import PROGRAM_REASONS, check_source, from_run, shown_tests
from gpu_workers.verifiers.results import TaskError, VerifierConfig, failed, passed, read_config
from gpu_workers.verifiers.sandboxed import MAX_EPISODE_BYTES, SandboxRun, bundle, no_result, run_sandboxed, too_large

SOURCE = bundle(
    "suite", "values", "audit", "pipes", "sdk", "server", "trust", "clock", "handles", "process", "copies", "remote",
    "pytest_shim", "fixtures",
)  # fmt: skip
SUITE_SHARE = 0.8  # of the verifier's time, so that it can still say which test hung
# Files by which a candidate would configure the tests or the interpreter. They are never taken, whoever wrote them.
NEVER_TAKEN = (
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "sitecustomize.py", "usercustomize.py",
    "*.pth", "*.pyc", "*.so", ".local", ".gitconfig", ".pdbrc", ".pythonrc", ".pydistutils.cfg",
)  # fmt: skip
LIBRARIES = frozenset({"pytest", "ratchet_verifier", "gpu_workers"})  # of the check; nobody else's module is one
_FENCED = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\n(.*?)```", re.DOTALL)
_TEST_FILE = re.compile(r"(test_[^/]*|[^/]*_test)\.py\Z")
MAX_SHOWN = 20


class SuiteConfig(VerifierConfig, frozen=True, kw_only=True):
    answer_file: str = ""  # the answer's code (its last fenced block, else all of it) becomes this file
    take: tuple[str, ...] = ("*",)  # patterns of the workspace's files that are tested; no others are taken
    source_root: str = ""  # folder of the workspace from which modules are imported, e.g. src
    isolation: Literal["apart", "shared"] = "apart"  # shared: code of the candidate in the process of the tests
    call_timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0  # of one call into the candidate
    objects: bool = False  # the tests are of classes: operators of the candidate's objects are believed
    changes_arguments: bool = False  # functions that return something change the tests' lists as well
    partial: bool = False  # a fail earns the share of tests that pass


@dataclass(frozen=True)
class Taken:
    """The candidate's files that are tested, and those left behind with the reason."""

    files: dict[str, bytes]
    refused: dict[str, str]


class SuiteVerifier:
    """Passes when every test of `files` passes. Raises NoResult when no test could be run.

    The tests' own process never holds code of the candidate with isolation "apart": it asks a process of the
    candidate for values, and compares them here, by strict type.
    """

    def __init__(self, spec: VerifierSpec, backend: SandboxBackend) -> None:
        self.config = read_config(spec, SuiteConfig)
        self.spec = spec
        self.backend = backend
        self.leaning = Leaning(backend, self._attempt)
        check_tree(spec.files)

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if self.config.answer_file and not episode.answer.strip():
            return failed(ReasonCode.NO_OUTPUT, "the answer is empty")
        return await self.leaning.judge(task, episode)

    async def _attempt(self, task: TaskBundle, episode: FinishedEpisode) -> tuple[SandboxRun, VerifierResult]:
        taken = take_files(self.config, self.spec.files, episode)
        if sum(map(len, taken.files.values())) > MAX_EPISODE_BYTES:
            raise too_large()
        arguments = {
            "tests": self.spec.files,
            "files": {path: base64.b64encode(data).decode() for path, data in taken.files.items()},
            "modules": module_names(taken.files, self.config.source_root),
            "root": self.config.source_root,
            "seconds": SUITE_SHARE * task.contract.limits.verify_timeout_seconds,
            "timeout_seconds": self.config.call_timeout_seconds,
            "objects": self.config.objects,
            "changes_arguments": self.config.changes_arguments,
            "shared": self.config.isolation == "shared",
            "shown": shown_tests(task),
        }
        run = await run_sandboxed(self.backend, task, SOURCE, arguments)
        return run, self._read(run, taken)

    def _read(self, run: SandboxRun, taken: Taken) -> VerifierResult:
        num_tests, num_passed, num_only_raised, rows = _checked(run.result)
        evidence: dict[str, Any] = {"num_tests": num_tests, "num_passed": num_passed}
        if self.config.isolation == "shared":
            evidence["isolation"] = "code of the candidate ran in the process of the tests"
        if own_word := run.result.get("own_word"):  # operators between two objects of the candidate were believed
            evidence["own_word"] = dict(list(own_word.items())[:MAX_SHOWN])
        if taken.refused:
            evidence["not_taken"] = dict(list(taken.refused.items())[:MAX_SHOWN])
        components = tuple(_component(row) for row in rows)
        if num_passed == num_tests:
            return from_run(passed(f"{num_tests} tests passed", evidence=evidence), run, components)
        first = next((row for row in rows if row["reason"] == ReasonCode.TAMPER_DETECTED), rows[0])
        evidence["failed"] = [row["name"] for row in rows if not row["passed"]][:MAX_SHOWN]
        message = f"{num_tests - num_passed} of {num_tests} tests failed; {first['name']}: {first['message']}"
        num_earned = num_passed
        if num_only_raised and not run.result.get("has_returned"):
            num_earned -= num_only_raised
            evidence["only_raised"] = num_only_raised
            message += (
                f"; {num_only_raised} passed by an error alone and earn nothing, as no other returned what it must"
            )
        score = num_earned / num_tests if self.config.partial and first["reason"] != "TAMPER_DETECTED" else 0.0
        reason = ReasonCode(first["reason"])
        return from_run(failed(reason, message[:1000], score=score, evidence=evidence), run, components)


def check_tree(files: Mapping[str, str]) -> None:
    """A tree of tests must hold at least one and compile. Raises TaskError naming the file."""
    for path, text in files.items():
        if path.startswith("/") or ".." in path.split("/") or not path.isprintable():
            raise TaskError(f"verifier.files: {path!r} is not a relative path")
        if path.endswith(".py"):
            check_source(text, f"verifier.files[{path}]")
    if not any(_TEST_FILE.search(path) for path in files):
        raise TaskError("verifier.files: no file of tests (test_*.py or *_test.py)")


def take_files(config: SuiteConfig, tree: Mapping[str, str], episode: FinishedEpisode) -> Taken:
    """What of the workspace and the answer is put beside the tests: nothing that configures or replaces them."""
    files, refused = {}, {}
    for path, data in episode.files.items():
        if _configures(path):
            refused[path] = "configures the tests or the interpreter"
        elif (name := _module_of(path, config.source_root)) in LIBRARIES:
            refused[path] = f"takes the place of {name}, which the check uses"
        elif path in tree:
            refused[path] = "the suite's own file is used"
        elif any(fnmatch.fnmatch(path, pattern) for pattern in config.take):
            files[path] = data
    if config.answer_file:
        blocks = _FENCED.findall(episode.answer)
        files[config.answer_file] = (blocks[-1] if blocks else episode.answer).encode(errors="replace")
    return Taken(files, storable(refused))


def module_names(paths: Mapping[str, bytes], root: str) -> list[str]:
    """Top-level modules that the candidate's files make; the standard library's names stay its own."""
    names = {_module_of(path, root) for path in paths if path.endswith(".py")}
    return sorted(names - sys.stdlib_module_names - LIBRARIES - {""})


def _module_of(path: str, root: str) -> str:
    """The top-level module that a file belongs to, if imports begin at `root`; empty where it can be none."""
    prefix = root.strip("/") + "/" if root else ""
    if not path.startswith(prefix):
        return ""
    first, slash, _ = path[len(prefix) :].partition("/")
    name = first if slash else first.removesuffix(".py")
    return name if name.isidentifier() else ""


def _configures(path: str) -> bool:
    """Whether a file, or a folder that it lies in, is one by which the tests or the interpreter are configured."""
    parts = path.lower().split("/")
    names = {*parts, *(part + ".py" for part in parts)}  # a package does what a module of its name does
    return any(fnmatch.fnmatch(name, pattern) for name in names for pattern in NEVER_TAKEN)


def _checked(result: dict[str, Any]) -> tuple[int, int, int, Sequence[dict[str, Any]]]:
    """Counts and rows from inside. Raises NoResult unless they are whole."""
    nums = [result.get(name) for name in ("num_tests", "num_passed", "num_only_raised")]
    num_tests, num_passed, num_only_raised = (num if type(num) is int else -1 for num in nums)
    rows = result.get("tests")
    if min(num_tests, num_passed, num_only_raised) < 0 or not isinstance(rows, list):
        no_result("the runner of the tests handed over no counts")
    if num_tests < 1:
        no_result("no test was run")
    for row in rows:
        if not isinstance(row, dict) or not {"name", "passed", "message", "reason", "seconds"} <= row.keys():
            no_result("the runner of the tests handed over no rows")
        if row["reason"] not in PROGRAM_REASONS | {ReasonCode.OK}:
            no_result(f"unknown reason {row['reason']!r} of a test")
    if not 0 <= num_passed <= num_tests or (num_passed < num_tests and not (rows and not rows[0]["passed"])):
        no_result("the counts of the tests do not fit together")
    return num_tests, num_passed, min(num_only_raised, num_passed), rows


def _component(row: dict[str, Any]) -> ComponentRecord:
    return ComponentRecord(
        name=storable(str(row["name"])),
        verdict=Verdict.PASS if row["passed"] else Verdict.FAIL,
        score=float(bool(row["passed"])),
        reason_code=ReasonCode(row["reason"]),
        message=storable(str(row["message"])),
        duration_seconds=float(row["seconds"]),
    )
