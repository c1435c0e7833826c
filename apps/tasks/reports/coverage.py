"""What a suite covers: tags, lengths of prompts, difficulty, contracts; gaps between its splits. Pure."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from apps.tasks.models import SplitName
from apps.tasks.reports.attempts import SuiteAttempts
from apps.tasks.reports.facts import TaskFacts
from apps.tasks.reports.options import (
    LENGTH_BINS,
    RATE_BINS,
    ContractRow,
    Difficulty,
    Finding,
    Lengths,
    ReportOptions,
    Row,
    Severity,
    rate_bin,
)
from gpu_workers.contracts.grants import describe

MAX_CONTRACTS = 20  # different contracts that are told one by one
_LONG_RATIO = 2.0  # of the medians of train and held-out
_TOO_EASY, _TOO_HARD = 0.95, 0.02
_SMALL = 30  # held-out tasks below which an interval is too wide to decide on

BySplit = dict[str, list[TaskFacts]]


def split_facts(facts: Sequence[TaskFacts]) -> BySplit:
    """Tasks by split, in the order of the splits; empty splits are left out."""
    return {name: found for name in SplitName.values if (found := [fact for fact in facts if fact.split == name])}


def count_tags(splits: BySplit) -> dict[str, dict[str, int]]:
    """Tag → split → tasks."""
    tags: dict[str, dict[str, int]] = defaultdict(dict)
    for split, facts in splits.items():
        for tag, count in Counter(tag for fact in facts for tag in fact.tags).items():
            tags[tag][split] = count
    return dict(sorted(tags.items()))


def measure_lengths(splits: BySplit) -> dict[str, Lengths]:
    return {split: _lengths([fact.num_characters for fact in facts]) for split, facts in splits.items()}


def measure_difficulty(splits: BySplit, attempts: SuiteAttempts) -> dict[str, Difficulty]:
    """Pass rates of the baseline; empty where there is no baseline."""
    if not attempts.baseline:
        return {}
    return {split: _difficulty(facts, attempts) for split, facts in splits.items()}


def list_contracts(facts: Sequence[TaskFacts]) -> tuple[list[ContractRow], int]:
    """Contracts told apart by what they grant, most frequent first; the number of all, as only some are told."""
    same: dict[tuple[tuple[str, bool, str, bool], ...], list[TaskFacts]] = defaultdict(list)
    for fact in facts:
        # Names of files are the task's own content: here only how many there are counts.
        grants = tuple(
            (grant.topic, grant.granted, _files(fact) if grant.topic == "Files given" else grant.text, grant.limit)
            for grant in describe(fact.contract)
        )
        same[grants].append(fact)
    ordered = sorted(same.items(), key=lambda item: -len(item[1]))
    rows = [
        ContractRow(
            contract_hash=found[0].contract.contract_hash,
            num_tasks=len(found),
            example=found[0].id,
            grants=list(grants),
        )
        for grants, found in ordered[:MAX_CONTRACTS]
    ]
    return rows, len(ordered)


def find_gaps(splits: BySplit, tags: dict[str, dict[str, int]], lengths: dict[str, Lengths]) -> list[Finding]:
    """Where train and held-out do not cover the same, and whether held-out is large enough."""
    return [_tag_gaps(splits, tags), _length_gap(lengths), _size(splits)]


def find_difficulty(splits: BySplit, attempts: SuiteAttempts, options: ReportOptions) -> list[Finding]:
    """Whether the baseline can tell anything apart, and the tasks nobody ever passes."""
    return [_level(splits, attempts), _never(splits, attempts, options)]


def _lengths(counts: Sequence[int]) -> Lengths:
    p10, p50, p90 = (round(float(value), 1) for value in np.percentile(counts, [10, 50, 90]))
    bins = Counter(bisect_right(LENGTH_BINS, count - 1) for count in counts)
    return Lengths(
        n=len(counts), p10=p10, p50=p50, p90=p90, longest=max(counts),
        bins=[bins[index] for index in range(len(LENGTH_BINS) + 1)],
    )  # fmt: skip


def _difficulty(facts: Sequence[TaskFacts], attempts: SuiteAttempts) -> Difficulty:
    measured = [found for fact in facts if (found := attempts.of(fact.id)).baseline_n]
    bins = Counter(rate_bin(found.baseline_passed / found.baseline_n) for found in measured)
    return Difficulty(
        num_tasks=len(facts), num_measured=len(measured), num_episodes=sum(found.baseline_n for found in measured),
        num_passed=sum(found.baseline_passed for found in measured),
        bins=[bins[index] for index in range(len(RATE_BINS))],
    )  # fmt: skip


def _files(fact: TaskFacts) -> str:
    count = len(fact.contract.files)
    return "none" if not count else "1 file" if count == 1 else f"{count} files"


def _tag_gaps(splits: BySplit, tags: dict[str, dict[str, int]]) -> Finding:
    train, heldout = SplitName.TRAIN.value, SplitName.HELDOUT.value
    only_heldout = {tag for tag, counts in tags.items() if counts.get(heldout) and not counts.get(train)}
    only_train = {tag for tag, counts in tags.items() if counts.get(train) and not counts.get(heldout)}
    gaps = sorted(only_heldout | only_train) if {train, heldout} <= splits.keys() else []
    rows = [
        Row(task=fact.id, note=tag)
        for split, names in ((heldout, only_heldout), (train, only_train))
        for fact in splits.get(split, [])
        for tag in fact.tags
        if gaps and tag in names
    ]
    if not tags:
        text, severity = "No task has tags: what the suite covers cannot be told.", Severity.UNMEASURED
    elif gaps:
        text = f"{len(gaps)} of {len(tags)} tags are in only one of train and held-out: {_shorten(gaps)}."
        severity = Severity.WARNING
    else:
        text, severity = f"Train and held-out have the same {len(tags)} tags.", Severity.OK
    return Finding(
        name="tag_gaps", title="Tags that one split lacks", severity=severity, count=len(gaps), total=len(tags),
        unit="tags", text=text, rows=rows, discloses=False,
        advice="Add tasks with these tags to the split that lacks them, or say in the distribution that it is meant.",
    )  # fmt: skip


def _length_gap(lengths: dict[str, Lengths]) -> Finding:
    train, heldout = lengths.get(SplitName.TRAIN), lengths.get(SplitName.HELDOUT)
    finding = Finding(
        name="length_gap", title="Prompt lengths", severity=Severity.OK, count=0, total=0, unit="characters",
        discloses=False, advice="Check that the splits were drawn from the same tasks.",
    )  # fmt: skip
    if train is None or heldout is None:
        finding.severity, finding.text = Severity.UNMEASURED, "There is no train or no held-out split to compare."
        return finding
    short, long = sorted((train.p50 or 1.0, heldout.p50 or 1.0))
    finding.count, finding.total = round(heldout.p50), round(train.p50)
    finding.text = f"The median prompt has {heldout.p50:g} characters in held-out and {train.p50:g} in train."
    if long / short > _LONG_RATIO:
        finding.severity = Severity.WARNING
    return finding


def _size(splits: BySplit) -> Finding:
    heldout = [fact for fact in splits.get(SplitName.HELDOUT, []) if fact.usable]
    small = len(heldout) < _SMALL
    return Finding(
        name="heldout_size", title="Size of held-out", severity=Severity.WARNING if small else Severity.OK,
        count=len(heldout), total=len(splits.get(SplitName.HELDOUT, [])), discloses=False,
        text=f"{len(heldout)} held-out tasks are usable" + (", too few for a narrow interval." if small else "."),
        advice=f"Add held-out tasks: below {_SMALL} a gate will mostly be inconclusive.",
    )  # fmt: skip


def _level(splits: BySplit, attempts: SuiteAttempts) -> Finding:
    facts = splits.get(SplitName.HELDOUT, [])
    found = _difficulty(facts, attempts)
    finding = Finding(
        name="level", title="Difficulty", severity=Severity.OK, count=found.num_measured, total=len(facts),
        advice="Change the mix: where the baseline passes nearly all or nothing, no gain can be seen.",
    )  # fmt: skip
    rate = found.rate
    if not attempts.baseline or rate is None:
        finding.severity = Severity.UNMEASURED
        finding.text = "Not measured: no baseline was evaluated on held-out tasks."
        finding.advice = "Evaluate the prompt-only policy on held-out: its pass rates are the difficulty."
        return finding
    finding.text = f"{attempts.baseline} passes {rate:.1%} of held-out (n = {found.num_episodes} episodes)."
    if rate > _TOO_EASY or rate < _TOO_HARD:
        finding.severity = Severity.WARNING
    return finding


def _never(splits: BySplit, attempts: SuiteAttempts, options: ReportOptions) -> Finding:
    tried = [
        (fact, found.n, found.num_passed)
        for facts in splits.values()
        for fact in facts
        if (found := attempts.of(fact.id)).n >= options.min_attempts
    ]
    rows = [Row(task=fact.id, value=float(n), note=f"0 of {n}") for fact, n, passed in tried if not passed]
    finding = Finding(
        name="never_passed", title="Tasks nobody ever passes", count=len(rows), total=len(tried), rows=rows,
        severity=Severity.WARNING if rows else Severity.OK, unit="tasks tried", value_name="attempts",
        text=f"{len(rows)} of {len(tried)} tasks with at least {options.min_attempts} attempts were never passed.",
        advice="Read some of them: a verifier that refuses right answers looks the same as a task that is too hard.",
    )  # fmt: skip
    if not tried:
        finding.severity = Severity.UNMEASURED
        finding.text = f"Not measured: no task has {options.min_attempts} scored attempts yet."
        finding.advice = "Evaluate a policy on the suite, or train on it."
    return finding


def _shorten(names: Sequence[str], shown: int = 6) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
