"""Runs a test suite against a candidate's files: the tests here, in memory; the candidate's code in a process apart.

`test_*` functions, `Test*` classes and unittest's cases are collected from the given tree alone. A module of the
candidate that a test imports is a stand-in whose functions run over there. With isolation "shared" the candidate's
modules are imported into this process: weaker, for suites whose tests subclass or patch what they test.
"""

from __future__ import annotations

import base64
import builtins
import importlib
import importlib.abc
import importlib.machinery
import inspect
import io
import itertools
import json
import os
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

from gpu_workers.verifiers.inside import copies, pipes, pytest_shim, remote
from gpu_workers.verifiers.inside.clock import WATCH
from gpu_workers.verifiers.inside.fixtures import as_function, is_fixture, with_fixtures

MAX_COMPONENTS = 200
MAX_MESSAGE = 300
CHANGED = (
    " (a function that returned something changed its arguments, which those of the tests did not follow:"
    " config changes_arguments)"
)


class TestTree(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the suite's own modules from memory, by their path below the tree or below the folder of tests."""

    def __init__(self, files: dict) -> None:
        self.texts: dict = {}
        self.paths: dict = {}
        for path, text in files.items():
            if path.endswith(".py"):
                name = path[:-3].replace("/", ".")
                name = name[: -len(".__init__")] if name.endswith(".__init__") else name
                self.texts[name], self.paths[name] = text, path
        for name in list(self.texts):
            short = name.rpartition(".")[2]
            self.texts.setdefault(short, self.texts[name])
            self.paths.setdefault(short, self.paths[name])
            for parent in itertools.accumulate(name.split(".")[:-1], lambda a, b: a + "." + b):
                self.texts.setdefault(parent, "")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.texts:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: Any) -> None:
        module.__file__ = os.path.abspath(self.paths.get(module.__name__, module.__name__))  # noqa: PTH100
        exec(compile(self.texts[module.__name__], module.__file__, "exec"), module.__dict__)  # noqa: S102


class CandidateModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the candidate's modules as stand-ins, from one process that is begun anew after it died."""

    def __init__(self, names: set, root: str, **settings: Any) -> None:
        self.names, self.root, self.settings = names, root, settings
        self.process: Any = None
        self.own_word: dict = {}  # of all processes: see remote.Candidate

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        if self.process is None:
            self.process = remote.Candidate(root=self.root, **self.settings)
        return self.process.module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass

    def said(self) -> str:
        return self.process.said() if self.process is not None and self.process.fd >= 0 else ""

    def counts(self) -> tuple[int, int]:
        """Calls that returned and that raised, of all processes."""
        started = remote.Candidate.started
        return sum(one.num_returned for one in started), sum(one.num_raised for one in started)

    def note(self) -> str:
        """What the author of a test that failed may want to know of the process."""
        return CHANGED if self.process is not None and self.process.changed_unasked else ""

    def settle(self) -> None:
        if self.process is not None:
            self.process.settle()

    def forget(self) -> None:
        """End the process; the next import starts another one."""
        if self.process is not None:
            for said, times in self.process.own_word.items():
                self.own_word[said] = self.own_word.get(said, 0) + times
            self.process.close()
            self.process = None
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in self.names and self.made(module):
                del sys.modules[name]

    def made(self, module: Any) -> bool:
        """Whether a module is the candidate's: libraries and the tests' own modules stay."""
        if isinstance(module, remote.RemoteModule):
            return True
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        loader = getattr(module, "__loader__", None)
        return not isinstance(loader, TestTree) and any(place and place.startswith(self.root) for place in places)


class Suite:
    """Collects and runs; one row a test."""

    def __init__(self, arguments: dict) -> None:
        self.rows: list = []
        self.tests = arguments["tests"]
        self.deadline = time.monotonic() + arguments["seconds"]
        self.shared = arguments["shared"]
        files = {path: base64.b64decode(data) for path, data in arguments["files"].items()}
        remote.write_files(files)
        _serve_from_memory({os.path.abspath(path): text for path, text in self.tests.items()})  # noqa: PTH100
        WATCH.install()
        copies.install()
        self.tree = TestTree(self.tests)
        root = os.path.abspath(arguments["root"])  # noqa: PTH100
        settings = {name: arguments[name] for name in ("timeout_seconds", "objects", "changes_arguments")}
        self.candidate = CandidateModules(set(arguments["modules"]), root, deadline=self.deadline, **settings)
        sys.modules["pytest"] = pytest_shim
        sys.meta_path.insert(0, self.tree)
        if self.shared:
            sys.path.insert(0, root)
        else:
            sys.meta_path.insert(1, self.candidate)

    def run(self) -> None:
        for path in sorted(self.tests):
            name = Path(path).name
            if name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py")):
                self.run_file(path[:-3].replace("/", "."))
        self.candidate.forget()

    def run_file(self, name: str) -> None:
        self.candidate.forget()  # no file of tests is touched by another one's
        sys.modules.pop(name, None)
        module = self.attempt(name, lambda: importlib.import_module(name), keep_pass=False)
        if module is None:
            return
        fixtures = {item._fixture: item for item in vars(module).values() if is_fixture(item)}
        for key, item in list(vars(module).items()):
            if isinstance(item, type) and issubclass(item, unittest.TestCase):
                for method in unittest.defaultTestLoader.getTestCaseNames(item):
                    self.attempt(f"{name}::{key}::{method}", as_function(item(method)))
            elif isinstance(item, type) and key.startswith("Test"):
                self.run_class(f"{name}::{key}", item, fixtures)
            elif key.startswith("test") and inspect.isfunction(item) and item.__module__ == name:
                self.run_function(f"{name}::{key}", item, fixtures, None)
        self.attempt(f"{name}: objects asked again", self.candidate.settle, keep_pass=False)

    def run_class(self, name: str, kind: type, fixtures: dict) -> None:
        own = {item._fixture: item for item in vars(kind).values() if is_fixture(item)}
        for key, item in list(vars(kind).items()):
            if key.startswith("test") and inspect.isfunction(item):
                self.run_function(f"{name}::{key}", item, {**fixtures, **own}, kind)

    def run_function(self, name: str, function: Any, fixtures: dict, kind: Any) -> None:
        if getattr(function, "_skip", False):
            return
        cases = getattr(function, "_cases", [{}])
        for index, case in enumerate(cases):
            label = f"{name}[{index}]" if len(cases) > 1 else name
            self.attempt(label, lambda case=case: with_fixtures(function, case, fixtures, kind))

    def attempt(self, name: str, test: Any, keep_pass: bool = True) -> Any:
        """Run one test and note how it went; its value, None where it failed."""
        started = time.monotonic()
        row = {"name": name, "passed": False, "message": "", "reason": "WRONG_ANSWER"}
        value = None
        WATCH.read = False
        returned, raised = self.candidate.counts()
        try:
            if started > self.deadline:
                raise remote.CandidateGone("the time of the whole suite is used up", timed_out=True)
            value = test()
            row.update(passed=True, reason="OK")
        except pytest_shim.Skipped:
            return value
        except remote.CandidateGone as gone:
            said = self.candidate.said().strip()[-MAX_MESSAGE:]
            row.update(message=f"{gone}; it printed: {said}" if said else str(gone))
            row.update(reason="AGENT_TIMEOUT" if gone.timed_out else "WRONG_ANSWER")
            self.candidate.forget()
        except remote.Tampered as tampered:
            row.update(message=str(tampered), reason="TAMPER_DETECTED")
        except remote.TooMuch as large:
            row.update(message=str(large), reason="RESOURCE_LIMIT")
        except BaseException as error:
            text = f"{type(error).__name__}: {str(error) or self.line_of(error)}"[:MAX_MESSAGE]
            row.update(message=text + self.candidate.note())
        row["seconds"] = time.monotonic() - started
        now_returned, now_raised = self.candidate.counts()
        row["returned"], row["only_raised"] = now_returned > returned, now_returned == returned and now_raised > raised
        if keep_pass or not row["passed"]:
            self.rows.append(row)
        return value

    def line_of(self, error: BaseException) -> str:
        """The last line of the tests that an error without words came through."""
        texts = {os.path.abspath(path): text for path, text in self.tests.items()}  # noqa: PTH100
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename in texts and frame.lineno:
                return f"line {frame.lineno}: {texts[frame.filename].splitlines()[frame.lineno - 1].strip()}"
        return ""


def _serve_from_memory(texts: dict) -> None:
    """Files of the test tree are read from here: on disk the candidate could read or change them."""
    real = io.open

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = os.path.abspath(file) if isinstance(file, (str, os.PathLike)) else None  # noqa: PTH100
        if path in texts and not set(mode) & set("wax+"):
            return io.BytesIO(texts[path].encode()) if "b" in mode else io.StringIO(texts[path])
        return real(file, mode, *args, **kwargs)

    builtins.open = io.open = open_


def call(arguments: dict) -> str:
    """Names and outcomes of all tests with the nonce, as JSON."""
    nonce = arguments.pop("nonce")
    pipes.SHOWN[:] = arguments["shown"]
    suite = Suite(arguments)
    suite.run()
    failed = [row for row in suite.rows if not row["passed"]]
    passed = [row for row in suite.rows if row["passed"]]
    result = {"num_tests": len(suite.rows), "num_passed": len(passed), "tests": (failed + passed)[:MAX_COMPONENTS]}
    # Code that raises whatever it is given passes tests that want an error: alone they show nothing.
    result["num_only_raised"] = sum(row["only_raised"] for row in passed)
    result["has_returned"] = any(row["returned"] for row in passed)
    result["seen"] = pipes.SEEN
    result["own_word"] = suite.candidate.own_word
    result["rests_on"] = remote.rests_on()
    return json.dumps({"nonce": nonce, "result": result})
