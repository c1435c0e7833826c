"""What a report may be told, and what it is made of. Wire and storage types; no database."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.3, le=1.0)]


class ReportOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Choices of one report; they are part of what it is identified by."""

    threshold: Share = 0.8  # Jaccard similarity from which two prompts are near-duplicates
    shingle_characters: Annotated[int, msgspec.Meta(ge=2, le=50)] = 5
    min_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4  # below it "never passed" is not said of a task
    min_answer_characters: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 12  # shorter answers agree by chance
    repeats: Annotated[int, msgspec.Meta(ge=1, le=10)] = 2  # times each probe is judged
    max_probed: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200  # tasks that are probed, drawn by the seed
    max_replays: Annotated[int, msgspec.Meta(ge=0, le=5000)] = 200  # stored episodes judged again
    probe: bool = True  # False: no shortcut policies, no repeated verdicts
    seed: int = 0  # of MinHash and of which episodes are judged again


class Severity(StrEnum):
    """How much a finding matters, worst first."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNMEASURED = "unmeasured"
    OK = "ok"


class Row(msgspec.Struct, kw_only=True):
    """A task that a finding names. `other` is a second one, e.g. what it is a copy of. `value`: see the finding."""

    task: str
    other: str = ""
    value: float | None = None
    note: str = ""


class Finding(msgspec.Struct, kw_only=True):
    """One thing that was looked for. `count` of `total`, both in `unit`; the rows are the tasks behind the count.

    `discloses`: a row says something of a task's content or of how policies fare on it, so that rows with a held-out
    task are for those only who may read held-out content. Otherwise a row shows nothing but keys.
    """

    name: str
    title: str
    severity: Severity
    count: int
    total: int
    unit: str = "tasks"
    text: str = ""
    advice: str = ""
    value_name: str = ""
    discloses: bool = True
    rows: list[Row] = []


class Lengths(msgspec.Struct, kw_only=True):
    """Characters of the prompts of one split. `bins`: counts by LENGTH_BINS."""

    n: int
    p10: float
    p50: float
    p90: float
    longest: int
    bins: list[int]


class Difficulty(msgspec.Struct, kw_only=True):
    """Pass rates of the baseline on the tasks of one split. `bins`: tasks by RATE_BINS."""

    num_tasks: int
    num_measured: int
    num_episodes: int
    num_passed: int
    bins: list[int]

    @property
    def rate(self) -> float | None:
        return self.num_passed / self.num_episodes if self.num_episodes else None


class ContractRow(msgspec.Struct, kw_only=True):
    """One environment contract and how many tasks have it. `grants`: [topic, granted, text, limit]."""

    contract_hash: str
    num_tasks: int
    example: str  # id of a task that has it
    grants: list[tuple[str, bool, str, bool]]


class ReportBody(msgspec.Struct, kw_only=True):
    """A report as stored. Task ids are those of the suite; keys and splits are read when it is shown."""

    options: ReportOptions
    splits: dict[str, int]
    tags: dict[str, dict[str, int]] = {}
    lengths: dict[str, Lengths] = {}
    baseline: str = ""  # title of the policy whose pass rates are the difficulty; empty: none was evaluated
    difficulty: dict[str, Difficulty] = {}
    contracts: list[ContractRow] = []
    num_contracts: int = 0
    findings: list[Finding] = []
    headline: str = ""
    verdict: Severity = Severity.OK  # of the worst finding

    def finding(self, name: str) -> Finding | None:
        return next((finding for finding in self.findings if finding.name == name), None)


LENGTH_BINS = (100, 200, 400, 800, 1600, 3200, 6400)  # characters, upper bounds; the last bin is open
RATE_BINS = ("0", "to .25", "to .5", "to .75", "below 1", "1")


def rate_bin(rate: float) -> int:
    """Index into RATE_BINS."""
    if rate <= 0:
        return 0
    return 5 if rate >= 1 else min(4, 1 + int(rate * 4 - 1e-12))


def parse_options(values: Any) -> ReportOptions:
    """Options from a request. Raises msgspec.ValidationError naming the field."""
    return msgspec.convert(values, ReportOptions)
