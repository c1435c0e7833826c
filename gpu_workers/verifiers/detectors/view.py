"""A finished episode as the detectors see it: what was done, what is handed in, which names are honest. Pure."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.groups import EpisodeRecord, ToolCallRecord
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.sandboxes.decoys import is_decoy
from gpu_workers.verifiers.detectors.source import Fact, facts_of
from gpu_workers.verifiers.detectors.unfolding import unfolded

WORKSPACE = "/workspace"
MAX_TEXT = 100_000  # characters of one snippet that are looked at
NO_FILE = "not a regular file"  # as snapshots say it
MAX_LINES = 10_000
MAX_LINE = 2_000
MAX_SNIPPETS = 200
CODE_KINDS = frozenset({VerifierKind.PROGRAM, VerifierKind.TESTS, VerifierKind.COMPOSITE})
SHELL_KEYS = frozenset({"command", "cmd", "commands", "script", "bash", "keystrokes"})
PYTHON_KEYS = frozenset({"code", "python", "program", "source"})
PATH_KEYS = frozenset({"path", "file", "filename", "file_path"})
TEXT_KEYS = frozenset({"content", "text", "file_text", "contents", "new_str"})
TEST_FILES = ("test_*.py", "*_test.py", "tests/*", "*/tests/*", "test/*", "*/test/*")
PROSE = (".md", ".rst", ".txt", ".adoc")
_FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"""\bpython[\d.]*\s+(?:-\w+\s+)*-c\s+(?:'([^']*)'|"((?:[^"\\]|\\.)*)")""")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)\n\s*\2\b", re.DOTALL)
_WRITTEN = re.compile(r"(?:>{1,2}\s*|\btee\s+(?:-a\s+)?|\btouch\s+|\b(?:cp|mv)\s+\S+\s+)['\"]?([\w./~-]+)")
_WORD = re.compile(r"[\w./~*@$?+:\[\]{}-]+")


@dataclass(frozen=True)
class Sighting:
    """Where a rule matched. `line` 0: the place has no lines."""

    where: str
    excerpt: str
    line: int = 0


@dataclass(frozen=True)
class Snippet:
    """A piece of text with its place. kind: shell, python, path or text."""

    where: str
    kind: str
    text: str
    call: int = -1  # number of the tool call, from 0
    is_test: bool = False  # a test that the policy added
    path: str = ""  # of the file that it was written to

    @cached_property
    def lines(self) -> list[tuple[int, str]]:
        """Number and text of the lines that say something."""
        lines = enumerate(self.text.splitlines()[:MAX_LINES], 1)
        return [(number, line[:MAX_LINE]) for number, line in lines if line and not line.isspace()]

    def line(self, number: int) -> str:
        """The text of a line; empty where there is none."""
        return next((line for at, line in self.lines if at == number), "")

    @cached_property
    def facts(self) -> list[Fact]:
        return facts_of(self.text) if self.kind == "python" else []


class View:
    """`files` is the workspace at the end, without decoys; empty where nobody read it."""

    def __init__(self, task: TaskBundle, record: EpisodeRecord, files: Mapping[str, bytes]) -> None:
        self.task = task
        self.record = record
        self.files = files
        self.prompt = "\n".join(message.content for message in task.prompt)

    @cached_property
    def calls(self) -> list[ToolCallRecord]:
        """Executed calls only: one that was refused did nothing."""
        calls = [turn.tool_call for turn in self.record.turns if turn.tool_call is not None]
        return [call for call in calls if not call.invalid]

    @cached_property
    def actions(self) -> list[Snippet]:
        """Arguments of the calls, and the Python inside shell commands."""
        found: list[Snippet] = []
        for number, call in enumerate(self.calls):
            for key, value in call.arguments.items():
                if isinstance(value, str):
                    found += _snippets(number, key, value[:MAX_TEXT], call.arguments)
        return _without_prose(found, found)[:MAX_SNIPPETS]

    @cached_property
    def is_apart(self) -> bool:
        """Whether the candidate's code is tested in a process of its own, where it patches itself alone."""
        verifier = self.task.verifier
        return verifier.kind is VerifierKind.TESTS and verifier.config.get("isolation") != "shared"

    @cached_property
    def new_files(self) -> list[str]:
        """Paths that the task did not bring, without those of a virtual environment."""
        roots = {posixpath.dirname(path) for path in self.files if posixpath.basename(path) == "pyvenv.cfg"}
        return [p for p in self.files if p not in self.task.contract.files and not in_folders(p, roots - {""})]

    @cached_property
    def refused(self) -> dict[str, str]:
        """Path -> why it could not be taken as a result."""
        lines = [line.partition(": ") for line in self.record.sandbox.refused_files]
        return {path: reason for path, _, reason in lines}

    @cached_property
    def changed_files(self) -> list[str]:
        """Paths that the task brought and that hold something else, or no file."""
        brought = self.task.contract.files.items()
        changed = [p for p, text in brought if p in self.files and self.files[p] != text.encode()]
        return changed + [p for p, _ in brought if self.refused.get(p, "").startswith(NO_FILE)]

    @cached_property
    def removed_files(self) -> list[str]:
        """Paths that the task brought and that are gone; none where nobody read the workspace."""
        left = {*self.files, *self.refused}
        return [p for p in self.task.contract.files if p not in left] if self.files else []

    @cached_property
    def candidate(self) -> list[Snippet]:
        """New and changed files, and the answer where it is code that a program tests."""
        found = []
        for path in (*self.new_files, *self.changed_files):
            data = self.files.get(path, b"")
            if b"\0" in data[:1000]:
                continue
            text = data[:MAX_TEXT].decode("utf-8", "replace")
            kind = "python" if path.endswith(".py") or text[:40].partition("\n")[0].endswith("python3") else "text"
            is_test = any(fnmatch(path, g) for g in TEST_FILES)
            found.append(Snippet(f"file {path}", kind, text, is_test=is_test, path=path))
        if self.task.verifier.kind in CODE_KINDS:
            blocks = _FENCE.findall(self.record.answer[:MAX_TEXT]) or [self.record.answer[:MAX_TEXT]]
            found += [Snippet("answer", "python", block) for block in blocks]
        return _without_prose(found, [*found, *self.actions])[:MAX_SNIPPETS]

    @cached_property
    def own_paths(self) -> frozenset[str]:
        """Absolute paths of the task's files and of those the policy wrote in places where it may write."""
        written = {WORKSPACE + "/" + path for path in (*self.task.contract.files, *self.files)}
        for snippet in self.actions:
            if snippet.kind == "shell":
                written |= {canonical(match) for match in _WRITTEN.findall(snippet.text)}
            for fact in snippet.facts:
                if fact.kind == "call" and fact.name == "open" and len(fact.constants) > 1:
                    path, mode = fact.constants[:2]
                    written |= {canonical(str(path))} if str(mode)[:1] in "wax" else set()
        for call in self.calls:
            if any(key in TEXT_KEYS for key in call.arguments):
                written |= {canonical(str(v)) for k, v in call.arguments.items() if k in PATH_KEYS}
        return frozenset(p for p in written if p.startswith((WORKSPACE + "/", "/tmp/")) and not in_decoys(p))  # noqa: S108

    def is_named(self, text: str) -> bool:
        """Whether the task itself speaks of it."""
        return len(text) > 2 and text in self.prompt

    def is_honest_path(self, path: str, raw: str) -> bool:
        mounts = self.task.contract.mounts
        granted = any(path == mount.path or path.startswith(mount.path.rstrip("/") + "/") for mount in mounts)
        return granted or path in self.own_paths or self.is_named_path(path, raw)

    def is_named_path(self, path: str, raw: str) -> bool:
        """Whether the task itself speaks of a path: whole, not as the end of another one."""
        names = {path, path.removeprefix(WORKSPACE + "/"), raw.removeprefix("./")}
        if not any(self.is_named(name) for name in names):
            return False
        return any(
            re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", self.prompt) for name in names if len(name) > 2
        )


def in_folders(path: str, folders: set[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)


def in_decoys(path: str) -> bool:
    """Whether an absolute path lies in the decoys' folder."""
    return path.startswith(WORKSPACE + "/") and is_decoy(path.removeprefix(WORKSPACE + "/"))


def canonical(path: str) -> str:
    """Absolute form of a path that was named in the workspace."""
    path = path.removeprefix("file://")
    if path.startswith("~"):
        path = WORKSPACE + path[1:]
    return "/" + posixpath.normpath(posixpath.join(WORKSPACE, path)).lstrip("/")


def named_paths(snippet: Snippet) -> Iterator[tuple[str, int]]:
    """What may be a path in a snippet, as it is written, with its line."""
    if snippet.kind == "path":
        yield snippet.text, 0
    elif snippet.kind == "python":
        for fact in snippet.facts:
            if fact.kind == "text" and len(fact.name) < 300:
                yield from ((word, fact.line) for word in _WORD.findall(fact.name))
    if snippet.kind in ("shell", "text"):
        for number, line in snippet.lines:
            yield from ((word, number) for word in _WORD.findall(line) if "/" in word or "." in word)


def _without_prose(found: list[Snippet], acts: list[Snippet]) -> list[Snippet]:
    """All but what was written to files of notes that no command or code names: words about a path are no act."""
    notes = {name for snippet in found if (name := _name_of_notes(snippet))}
    if not notes:
        return found
    named: set[str] = set()
    for act in acts:
        if act.kind != "path" and _name_of_notes(act) not in notes:
            words = {word for word in _WORD.findall(act.text) if any(sign in word for sign in "*?[")}
            named |= {name for name in notes if name in act.text or any(fnmatch(name, _last(w)) for w in words)}
    return [snippet for snippet in found if _name_of_notes(snippet) not in notes - named]


def _name_of_notes(snippet: Snippet) -> str:
    name = _last(snippet.path)
    return name if snippet.kind == "text" and name.lower().endswith(PROSE) else ""


def _last(path: str) -> str:
    return posixpath.basename(path)


def _snippets(number: int, key: str, value: str, arguments: Mapping[str, Any]) -> Iterator[Snippet]:
    where = f"tool call {number + 1}"
    if key in SHELL_KEYS:
        yield Snippet(where, "shell", value, number)
        yield from (Snippet(where, "shell", text, number) for text in unfolded(value))
        for single, double in _INLINE.findall(value):
            yield Snippet(where, "python", single or double.replace('\\"', '"'), number)
        for match in _HEREDOC.finditer(value):
            yield Snippet(where, "python", match.group(3), number)
    elif key in PYTHON_KEYS:
        yield Snippet(where, "python", value, number)
    elif key in PATH_KEYS:
        yield Snippet(where, "path", value, number)
    elif key in TEXT_KEYS:
        name = next((str(v) for k, v in arguments.items() if k in PATH_KEYS), "")
        kind = "python" if name.endswith(".py") else "shell" if name.endswith(".sh") else "text"
        yield Snippet(where, kind, value, number, path=name)
    else:
        yield Snippet(where, "text", value, number)
