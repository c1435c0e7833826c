"""The metrics a gate policy may name are those a gate measures."""

from apps.evaluations.gate_policies import DEFAULT_METRICS, METRICS
from apps.promotions.guardrails import GUARDRAILS


def test_gate_policies_and_gates_know_the_same_metrics():
    assert set(METRICS) == set(GUARDRAILS) == set(DEFAULT_METRICS)
