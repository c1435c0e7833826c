"""The registry knows every number that the trainer sends, and says what it means."""

import pytest

from apps.metrics.measurements import _interval
from apps.metrics.registry import METRICS, Axis, Kind, Source, describe
from gpu_workers.algorithms.policy_loss import PolicySums
from gpu_workers.algorithms.value_loss import ValueSums
from gpu_workers.trainer.batches import BatchStatistics


def test_names_units_and_definitions_are_complete():
    for name, metric in METRICS.items():
        assert name == metric.name
        assert metric.title
        assert metric.definition.endswith(".")
        assert metric.source is (
            Source.REPORTED
            if name.startswith(("train/", "engine/", "trainer/", "host/")) and metric.kind is Kind.SERIES
            else Source.MEASURED
        )


def test_the_trainers_own_names_are_known():
    sent = BatchStatistics().metrics() | PolicySums().metrics() | ValueSums().metrics()
    assert len(sent) > 10
    assert {f"train/{name}" for name in sent} <= set(METRICS)


def test_an_unknown_name_is_described_as_such():
    described = describe(["train/loss", "my/own"])
    assert described["train/loss"]["title"] == "Loss"
    assert described["my/own"]["definition"] == "Not in the registry."
    assert METRICS["fleet/pause_seconds"].axis is Axis.VERSION


def test_the_interval_takes_the_group_as_its_unit():
    made = _interval(groups=4, scored=32, mean=0.5, spread=0.2)
    half = 3.182446 * 0.2 / 2  # t of 3 degrees of freedom at 97.5 %
    assert made["low"] == pytest.approx(0.5 - half, abs=1e-5)
    assert made["high"] == pytest.approx(0.5 + half, abs=1e-5)
    assert made["n"] == 32
    assert _interval(groups=1, scored=8, mean=0.5, spread=None)["low"] is None
