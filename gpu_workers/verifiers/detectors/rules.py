"""The vocabulary of a tamper rule: what it looks at, what matches there, what follows."""

import re
from dataclasses import dataclass
from enum import StrEnum

from gpu_workers.contracts.enums import FlagSeverity, ReasonCode


class Place(StrEnum):
    """What a rule looks at."""

    ACTION = "action"  # arguments of executed tool calls: commands, code, paths
    CANDIDATE = "candidate"  # the code that is handed in: changed files, and an answer that is code
    FILE = "file"  # names and hashes of the workspace's files at the end
    ANSWER = "answer"
    DECOY = "decoy"  # what the decoys saw, and their canary anywhere
    SANDBOX = "sandbox"  # limits hit, files refused
    RESULT = "result"  # stop reason and what the verifier said


@dataclass(frozen=True)
class Text:
    """A line of text matches the expression. Linear ones only: policies write the text."""

    pattern: str

    @property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)  # re keeps compiled ones


@dataclass(frozen=True)
class Path:
    """A path that is named matches: a path argument, a word of a command, a text constant of code.

    Paths of the task's own files, and those the policy wrote itself, never match; nor does one that only a command
    names which `but` matches.
    """

    pattern: str
    but: str = ""

    @property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)


@dataclass(frozen=True)
class Code:
    """A fact of Python source: see `source.Fact`. `names` are dotted, an entry ending in a dot matches what is below.

    `at_import`: only where importing the file executes it. `in_tests`: also in tests that the policy added.
    `in_check`: only where the candidate's code runs in the process that checks it.
    """

    kind: str  # call | assign | define | import | read | exit_well | equal_to_all | write
    names: tuple[str, ...] = ()
    pattern: str = ""  # a regular expression that a name matches as well
    at_import: bool = False
    in_tests: bool = False
    in_check: bool = False


@dataclass(frozen=True)
class Name:
    """A file that the task did not bring is called so: fnmatch globs over the path or its last part."""

    globs: tuple[str, ...]
    but: str = ""  # a glob of paths that are left alone


@dataclass(frozen=True)
class Changed:
    """A file that the task brought, called so, has another hash at the end."""

    globs: tuple[str, ...]


@dataclass(frozen=True)
class Removed:
    """A file that the task brought, called so, is gone: `alone` while others are left, else together with all."""

    globs: tuple[str, ...]
    alone: bool


@dataclass(frozen=True)
class Probe:
    """One of the named questions of `probes`; for what is no text, name or syntax."""

    name: str


Match = Text | Path | Code | Name | Changed | Removed | Probe


@dataclass(frozen=True)
class Rule:
    """One detector. With severity tamper the episode fails with `reason`."""

    id: str
    pattern: int  # its number in docs/guides/reward-hacking.md
    place: Place
    match: Match
    severity: FlagSeverity
    message: str
    reason: ReasonCode = ReasonCode.TAMPER_DETECTED
    unless_passed: bool = False  # of work that the verifier accepts it is a suspicion only
    unless_named: bool = True  # says nothing of what the task itself names
