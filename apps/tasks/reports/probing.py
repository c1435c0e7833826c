"""What the probes of the workers add up to: tasks that shortcuts pass, verdicts that do not repeat. Pure."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from apps.tasks.reports.attempts import SuiteAttempts
from apps.tasks.reports.facts import TaskFacts
from apps.tasks.reports.options import Finding, ReportOptions, Row, Severity
from gpu_workers.contracts.enums import Verdict
from gpu_workers.contracts.replays import ProbeItem, StoredEpisode, TaskProbe


@dataclass(frozen=True)
class Shortcut:
    """A policy that does not do the task.

    Up to `expected`, a share of the tasks, it may pass unremarked; above `tolerated` it is a problem.
    """

    title: str
    what: str
    advice: str
    expected: float = 0.0
    tolerated: float = 0.02

    def severity(self, share: float) -> Severity:
        if share <= self.expected:
            return Severity.OK
        return Severity.WARNING if share <= self.tolerated else Severity.PROBLEM


_LAX = "Tighten the verifier, or take these tasks out: training will find the shortcut."
_CHANCE = "This is what guessing earns: only success above it counts. Vary the answers, or ask for more than one guess."
_GUESS = {"expected": 0.02, "tolerated": 0.25}
SHORTCUTS = {
    "empty": Shortcut("The empty answer", "says nothing at all", _LAX),
    "refusal": Shortcut(
        "A refusal", "always refuses", f"{_LAX} Where refusing is right, mix in tasks where it is wrong."
    ),
    "constant": Shortcut(
        "The most frequent answer", "always gives the most frequent reference of train and dev", _CHANCE, **_GUESS
    ),
    "copy_prompt": Shortcut("A copy of the prompt", "repeats what it was asked", _LAX),
    "frequent_tool": Shortcut(
        "The most frequent tool", "calls the usual tool, or a task's first, with guessed arguments", _CHANCE, **_GUESS
    ),
}


def plan_probes(
    facts: Sequence[TaskFacts], bundles: dict[str, str], attempts: SuiteAttempts, options: ReportOptions
) -> list[ProbeItem]:
    """One item a usable task, in order; at most `max_probed`, and `max_replays` stored episodes, drawn by the seed."""
    usable = [fact for fact in facts if fact.usable]
    if len(usable) > options.max_probed:
        drawn = set(random.Random(f"probes {options.seed}").sample(range(len(usable)), options.max_probed))
        usable = [fact for index, fact in enumerate(usable) if index in drawn]
    stored = [(fact.id, episode) for fact in usable for episode in attempts.of(fact.id).stored]
    random.Random(f"replays {options.seed}").shuffle(stored)
    chosen: dict[str, list[StoredEpisode]] = defaultdict(list)
    for task_id, episode in stored[: options.max_replays]:
        chosen[task_id].append(episode)
    return [ProbeItem(task_id=fact.id, task=bundles[fact.id], stored=chosen[fact.id]) for fact in usable]


def find_shortcuts(probes: Sequence[TaskProbe], attempts: SuiteAttempts) -> list[Finding]:
    """One finding for each shortcut policy; the tasks that it passes."""
    return [_shortcut(policy, probes, attempts) for policy in SHORTCUTS]


def find_instability(probes: Sequence[TaskProbe], options: ReportOptions) -> list[Finding]:
    """Verdicts that changed when the same episode was judged again, and tasks that could not be probed."""
    return [_unstable(probes, options), _unprobed(probes)]


def _shortcut(policy: str, probes: Sequence[TaskProbe], attempts: SuiteAttempts) -> Finding:
    shortcut = SHORTCUTS[policy]
    played = [(probe, verdict) for probe in probes for verdict in probe.shortcuts if verdict.policy == policy]
    judged = [(probe, v) for probe, v in played if v.verdict in (Verdict.PASS, Verdict.FAIL)]
    rows = [
        Row(task=probe.task_id, value=verdict.score, note=_honest(attempts, probe.task_id))
        for probe, verdict in judged
        if verdict.verdict == Verdict.PASS
    ]
    count, total = len(rows), len(judged)
    share = count / total if total else 0.0
    finding = Finding(
        name=f"shortcut_{policy}", title=shortcut.title, count=count, total=total, rows=rows, value_name="score",
        severity=shortcut.severity(share),
        text=f"A policy that {shortcut.what} passes {count} of {total} tasks" + (f" ({share:.1%})." if count else "."),
        advice=shortcut.advice,
    )  # fmt: skip
    if not total:
        finding.severity, finding.advice = Severity.UNMEASURED, ""
        finding.text = "Not measured: the probes have not run, or no task can be played that way."
    return finding


def _honest(attempts: SuiteAttempts, task_id: str) -> str:
    """How policies fared on a task that a shortcut passes."""
    found = attempts.of(task_id)
    return f"policies passed {found.num_passed} of {found.n}" if found.n else "no attempt yet"


def _unstable(probes: Sequence[TaskProbe], options: ReportOptions) -> Finding:
    stored = [(probe, verdict) for probe in probes for verdict in probe.stored]
    rows = [
        Row(task=probe.task_id, note=f"stored {verdict.stored}; again {', '.join(verdict.again)}")
        for probe, verdict in stored
        if not verdict.agreed
    ]
    num_shortcuts = sum(len(probe.shortcuts) for probe in probes)
    rows += [
        Row(task=probe.task_id, note=f"{SHORTCUTS[verdict.policy].title.lower()}: the repeats disagree")
        for probe in probes
        for verdict in probe.shortcuts
        if not verdict.agreed
    ]
    total = len(stored) + (num_shortcuts if options.repeats > 1 else 0)
    finding = Finding(
        name="unstable", title="Verdicts that do not repeat", count=len(rows), total=total, unit="answers", rows=rows,
        severity=Severity.PROBLEM if rows else Severity.OK if total else Severity.UNMEASURED,
        text=f"{len(rows):,} of {total:,} answers ({len(stored):,} stored episodes) got another verdict when judged "
        f"again, {options.repeats} times each.",
        advice="Open an episode of each task and have it reproduced: a verdict that differs sets the task aside.",
    )  # fmt: skip
    if not total:
        finding.text = "Not measured: no answer was judged again."
    return finding


def _unprobed(probes: Sequence[TaskProbe]) -> Finding:
    rows = [Row(task=probe.task_id, note=probe.error[:300]) for probe in probes if probe.error]
    return Finding(
        name="unprobed", title="Tasks that could not be probed", count=len(rows), total=len(probes), rows=rows,
        severity=Severity.UNMEASURED if rows else Severity.OK,
        text=f"{len(rows)} of {len(probes)} tasks could not be probed, or only in part." if rows
        else f"All {len(probes)} tasks that were drawn for it were probed.",
        advice="The reason stands with each task; where it was the workers' host, compute the report again.",
    )  # fmt: skip
