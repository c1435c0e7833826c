"""Builds a report's body: first from content and stored attempts, then with what the workers' probes found. Pure."""

from collections.abc import Sequence

import msgspec

from apps.tasks.reports.attempts import SuiteAttempts
from apps.tasks.reports.coverage import (
    count_tags,
    find_difficulty,
    find_gaps,
    list_contracts,
    measure_difficulty,
    measure_lengths,
    split_facts,
)
from apps.tasks.reports.facts import TaskFacts
from apps.tasks.reports.options import ReportBody, ReportOptions
from apps.tasks.reports.probing import find_instability, find_shortcuts
from apps.tasks.reports.similarity import find_copies, find_shared
from apps.tasks.reports.verdict import rank_findings, say_verdict
from gpu_workers.contracts.replays import TaskProbe


def build_draft(facts: Sequence[TaskFacts], attempts: SuiteAttempts, options: ReportOptions) -> ReportBody:
    """All that needs no worker."""
    splits = split_facts(facts)
    tags, lengths = count_tags(splits), measure_lengths(splits)
    contracts, num_contracts = list_contracts(facts)
    return ReportBody(
        options=options,
        splits={split: len(found) for split, found in splits.items()},
        tags=tags,
        lengths=lengths,
        baseline=attempts.baseline,
        difficulty=measure_difficulty(splits, attempts),
        contracts=contracts,
        num_contracts=num_contracts,
        findings=[
            *find_copies(facts, options),
            *find_shared(facts, options),
            *find_gaps(splits, tags, lengths),
            *find_difficulty(splits, attempts, options),
        ],
    )


def finish_body(draft: ReportBody, probes: Sequence[TaskProbe], attempts: SuiteAttempts) -> ReportBody:
    """The draft with what the probes found, ranked, and its verdict line."""
    findings = [*draft.findings, *find_shortcuts(probes, attempts), *find_instability(probes, draft.options)]
    ranked = rank_findings(findings)
    verdict, headline = say_verdict(ranked)
    return msgspec.structs.replace(draft, findings=ranked, verdict=verdict, headline=headline)
