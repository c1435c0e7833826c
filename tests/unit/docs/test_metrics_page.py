"""docs/metrics.md is what the registry says, and the registry holds all that people are promised."""

import pytest

from apps.metrics.documentation import metrics_page
from apps.metrics.registry import METRICS, Kind
from ratchet.env import ROOT

# R35 and R36: what is streamed while it happens, and where the time goes.
PROMISED = {
    "rollout latency percentiles": [f"rollout/latency_p{p}_seconds" for p in (50, 90, 95, 99)],
    "latency distribution": ["rollout/latency_seconds"],
    "tool wait": ["rollout/tool_seconds_mean", "rollout/tool_wait_seconds"],
    "trajectory length": ["rollout/num_sampled_tokens_mean", "rollout/num_turns_mean", "rollout/length_tokens"],
    "utilisation": ["host/gpu_busy_share", "host/cpu_busy_share", "engine/busy_share", "trainer/busy_cores"],
    "policy version": ["fleet/policy_version"],
    "staleness": ["train/staleness_mean", "train/staleness_max", "rollout/staleness_mean", "train/staleness"],
    "reward distribution": ["rollout/reward", "rollout/reward_mean", "group/reward_mean"],
    "weight-update pause": ["fleet/pause_seconds"],
    "mismatch": ["train/kl_behaviour_k3", "train/logprob_mismatch_mean", "train/importance_ratio_max"],
    "entropy, clip fraction, gradient norm": ["train/entropy", "train/clip_fraction", "train/grad_norm"],
    "zero-variance groups": ["train/zero_variance_share"],
    "errors": [f"errors/{b}" for b in ("policy", "environment", "verifier", "engine", "infrastructure")],
    "cost": ["train/cpu_seconds"],
    "time": [f"time/{k}_seconds" for k in ("engine", "tool", "verifier", "queue", "trainer", "weight_update", "idle")],
}


def test_the_page_is_what_the_registry_says():
    path = ROOT / "docs" / "metrics.md"
    assert path.read_text(encoding="utf-8") == metrics_page(), "run: python manage.py document_metrics"
    assert all(f"`{name}`" in metrics_page() for name in METRICS)


@pytest.mark.parametrize("what", PROMISED)
def test_everything_promised_is_registered(what):
    assert set(PROMISED[what]) <= set(METRICS)


def test_distributions_are_histograms():
    names = {name for name, metric in METRICS.items() if metric.kind is Kind.HISTOGRAM}
    assert {"rollout/reward", "rollout/latency_seconds", "rollout/length_tokens", "train/staleness"} <= names
