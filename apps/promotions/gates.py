"""The verdict of a gate: pass, fail or inconclusive, from paired evidence and rules fixed beforehand. Pure.

Primary: held-out success must beat the incumbent by more than `min_effect`. Guardrails: each harm's upper bound must
stay within its margin. All required metrics must pass (intersection–union, so each is tested at the full alpha).
"""

from dataclasses import replace

from scipy import stats

from apps.evaluations import statistics
from apps.evaluations.statistics import Estimate
from apps.promotions.evidence import Evidence, Pairs, mean, pair, pair_worst_case
from apps.promotions.guardrails import GUARDRAILS, measure_guardrail
from apps.promotions.report import GateReport, Rules, Status, Tile, finite
from apps.promotions.wording import headline, lead

_MIN_DISCORDANT = 10  # below it the t bounds of success are checked by the exact sign test


def judge(evidence: Evidence, rules: Rules) -> GateReport:
    """Judge the evidence. Every number comes from the attempts alone."""
    pairs = pair(evidence, lambda attempt: attempt.success)
    if not pairs.tasks:
        return _with_words(_empty_report(evidence, rules))
    success = statistics.clustered_mean(pairs.differences, pairs.clusters, rules.alpha)
    primary = _primary(pairs, success, rules)
    tiles = [primary, *(measure_guardrail(name, evidence, rules) for name in GUARDRAILS)]
    worst, blocks = _missing(evidence, rules, primary)
    if not success.trusted:
        blocks.append(_cluster_block(success))
    num_better, num_worse = _discordant(pairs)
    report = GateReport(
        verdict=_overall(tiles, blocks),
        headline="",
        lead="",
        tiles=tiles,
        alpha=rules.alpha,
        num_tasks=success.num_tasks,
        num_clusters=success.num_clusters,
        effective_clusters=success.effective_clusters,
        largest_cluster_share=success.largest_cluster_share,
        num_better=num_better,
        num_worse=num_worse,
        mcnemar_p=statistics.mcnemar_exact(num_better, num_worse),
        wild_bootstrap_p=statistics.wild_cluster_p(pairs.differences, pairs.clusters, rules.min_effect, rules.seed),
        minimum_detectable_effect=finite(
            100 * statistics.minimum_detectable_effect(success.standard_error, success.degrees_of_freedom, rules.alpha)
        ),
        num_planned=evidence.num_planned,
        num_missing_incumbent=evidence.num_planned - len(evidence.incumbent),
        num_missing_candidate=evidence.num_planned - len(evidence.candidate),
        worst_case_low=worst,
        blocks=blocks,
    )
    return _with_words(report)


def _with_words(report: GateReport) -> GateReport:
    return replace(report, headline=headline(report), lead=lead(report))


def _overall(tiles: list[Tile], blocks: list[str]) -> Status:
    required = [tile.verdict for tile in tiles if tile.required]
    if Status.FAIL in required:
        return Status.FAIL
    if blocks or any(verdict is not Status.PASS for verdict in required):
        return Status.INCONCLUSIVE
    return Status.PASS


def _discordant(pairs: Pairs) -> tuple[int, int]:
    """Tasks that got better and that got worse."""
    differences = pairs.differences
    return sum(d > 0 for d in differences), sum(d < 0 for d in differences)


def _primary(pairs: Pairs, success: Estimate, rules: Rules) -> Tile:
    status = _beats(success, rules.min_effect)
    num_better, num_worse = _discordant(pairs)
    words = f"{num_better} better, {num_worse} worse"
    if status is Status.PASS and num_better + num_worse < _MIN_DISCORDANT:
        p = statistics.mcnemar_exact(num_worse, num_better, one_sided=True)
        if p > rules.alpha:
            status, words = Status.INCONCLUSIVE, f"{words}: too few differing tasks (exact p {p:.3f})"
    clears = success.estimate > rules.min_effect
    distance = success.estimate - success.low if clears else success.high - success.estimate
    more = statistics.tasks_to_decide(success.estimate, distance, rules.min_effect, success.num_tasks)
    return Tile(
        name="success",
        title="Held-out success",
        unit="pp",
        verdict=status,
        required=True,
        estimate=100 * success.estimate,
        low=finite(100 * success.low),
        high=finite(100 * success.high),
        margin=100 * rules.min_effect,
        n=success.num_tasks,
        incumbent=100 * mean(pairs.incumbent),
        candidate=100 * mean(pairs.candidate),
        more_tasks=more if status is Status.INCONCLUSIVE else None,
        words=words,
    )


def _beats(success: Estimate, min_effect: float) -> Status:
    if success.low > min_effect:
        return Status.PASS
    return Status.FAIL if success.high < min_effect else Status.INCONCLUSIVE


def _missing(evidence: Evidence, rules: Rules, primary: Tile) -> tuple[float | None, list[str]]:
    """Lower bound in the worst case, and what blocks: too much missing, arms that differ, a verdict that would flip."""
    planned = evidence.num_planned
    lacking = (planned - len(evidence.incumbent), planned - len(evidence.candidate))
    if not any(lacking):
        return primary.low, []
    blocks = []
    share = max(lacking) / planned
    if share > rules.max_missing_share:
        blocks.append(
            f"{lacking[0]} of {planned} attempts are missing for the incumbent and {lacking[1]} for the candidate; "
            f"{100 * rules.max_missing_share:g} % are allowed"
        )
    table = [[lacking[0], planned - lacking[0]], [lacking[1], planned - lacking[1]]]
    if stats.fisher_exact(table).pvalue < 0.05:
        blocks.append("the arms differ in how many attempts are missing")
    pairs = pair_worst_case(evidence)
    worst = statistics.clustered_mean(pairs.differences, pairs.clusters, rules.alpha)
    if primary.verdict is not Status.INCONCLUSIVE and _beats(worst, rules.min_effect) is not primary.verdict:
        blocks.append("the verdict on success would change if the missing attempts had gone against the candidate")
    return finite(100 * worst.low), blocks


def _cluster_block(success: Estimate) -> str:
    if success.largest_cluster_share > statistics.MAX_CLUSTER_SHARE:
        return (
            f"one cluster holds {100 * success.largest_cluster_share:.0f} % of the tasks: "
            "above a third no interval can be trusted"
        )
    return f"{success.num_clusters} clusters of tasks are too few: at least {statistics.MIN_CLUSTERS} are needed"


def _empty_report(evidence: Evidence, rules: Rules) -> GateReport:
    return GateReport(
        verdict=Status.INCONCLUSIVE,
        headline="",
        lead="",
        tiles=[],
        alpha=rules.alpha,
        num_tasks=0,
        num_clusters=0,
        effective_clusters=0.0,
        largest_cluster_share=0.0,
        num_better=0,
        num_worse=0,
        mcnemar_p=1.0,
        wild_bootstrap_p=1.0,
        minimum_detectable_effect=None,
        num_planned=evidence.num_planned,
        num_missing_incumbent=evidence.num_planned - len(evidence.incumbent),
        num_missing_candidate=evidence.num_planned - len(evidence.candidate),
        worst_case_low=None,
        blocks=["no task has a verdict in both arms"],
    )
