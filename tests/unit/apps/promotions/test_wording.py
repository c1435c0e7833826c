"""What a passed gate may claim: never that nothing got worse when something surely did."""

from dataclasses import replace

import pytest

from apps.promotions.report import GateReport, Status, Tile
from apps.promotions.wording import headline, lead


def tile(name, title, unit, verdict, low, estimate, high, required=True):
    return Tile(name, title, unit, verdict, required, estimate, low, high, margin=0.0, n=120)


SUCCESS = tile("success", "Held-out success", "pp", Status.PASS, 14.6, 25.8, 37.0)
COST = tile("tokens", "Cost per attempt (tokens)", "×", Status.PASS, 0.98, 1.01, 1.04)


@pytest.fixture
def report() -> GateReport:
    return GateReport(
        verdict=Status.PASS, headline="", lead="", tiles=[SUCCESS, COST], alpha=0.03, num_tasks=120, num_clusters=69,
        effective_clusters=55, largest_cluster_share=0.1, num_better=33, num_worse=2, mcnemar_p=0.0,
        wild_bootstrap_p=0.0, minimum_detectable_effect=None, num_planned=120, num_missing_incumbent=0,
        num_missing_candidate=0, worst_case_low=10.0, blocks=[],
    )  # fmt: skip


def test_nothing_got_worse_is_said_only_when_no_interval_says_otherwise(report):
    assert headline(report) == "Better on held-out tasks, and nothing else got worse"
    assert "Worse all the same" not in lead(report)


def test_a_price_inside_the_margins_is_named(report):
    dearer = replace(COST, low=1.02, estimate=1.04, high=1.05)
    paid = replace(report, tiles=[SUCCESS, dearer])
    assert headline(paid) == "Better on held-out tasks, at a price inside the margins"
    assert "Worse all the same: cost per attempt (tokens) (× 1.04, inside its margin)." in lead(paid)


def test_what_got_worse_beyond_a_margin_that_is_not_required_is_in_the_headline(report):
    turns = tile("turns", "Interactions", "turns", Status.INCONCLUSIVE, 0.30, 0.43, 0.56, required=False)
    slower = tile("latency_p50", "Latency p50", "×", Status.INCONCLUSIVE, 1.18, 1.35, 1.47, required=False)
    found = replace(report, tiles=[SUCCESS, COST, slower, turns])
    assert headline(found) == "Better on held-out tasks, but latency p50 and interactions got worse"
    assert "latency p50 (× 1.35, not required) and interactions (+0.43 turns, not required)" in lead(found)
