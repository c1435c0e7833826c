"""The report in one sentence: what is wrong with a suite, and what to do first. Pure."""

from collections.abc import Sequence

from apps.tasks.reports.options import Finding, Severity

# Worst first within one severity: what makes every other number doubtful comes before what makes one doubtful.
_WEIGHT = (
    "leaks", "unstable", "shortcut_empty", "shortcut_refusal", "shortcut_copy_prompt", "copies", "shared_answers",
    "cross_copies", "shortcut_constant", "shortcut_frequent_tool", "never_passed", "level", "shared_clusters",
    "tag_gaps", "length_gap", "heldout_size", "unprobed",
)  # fmt: skip
_ORDER = list(Severity)


def rank_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Worst first."""
    return sorted(findings, key=lambda finding: (_ORDER.index(finding.severity), _WEIGHT.index(finding.name)))


def say_verdict(ranked: Sequence[Finding]) -> tuple[Severity, str]:
    """Severity of the suite, and its verdict line."""
    worst = ranked[0]
    num_more = sum(finding.severity == worst.severity for finding in ranked) - 1
    more = f" {num_more} more of this weight below." if num_more else ""
    match worst.severity:
        case Severity.PROBLEM:
            return worst.severity, f"Do not rely on this suite yet. {worst.text} {worst.advice}{more}"
        case Severity.WARNING:
            return worst.severity, f"Usable with care. {worst.text} {worst.advice}{more}"
        case Severity.UNMEASURED:
            return (
                worst.severity,
                f"Nothing wrong was found, but not all was measured. {worst.text} {worst.advice}{more}",
            )
    return Severity.OK, "Nothing wrong was found in what was measured."
