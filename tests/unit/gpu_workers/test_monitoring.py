"""Rates of an engine between two readings."""

import pytest

from gpu_workers.monitoring import between, gpu_shares, host_usage

TOKENS, CPU = "sglang:generation_tokens_total", "process_cpu_seconds_total"


def test_rates_are_per_second_and_gauges_are_as_read() -> None:
    before = {TOKENS: 100.0, CPU: 10.0}
    after = {TOKENS: 300.0, CPU: 12.0, "sglang:num_running_reqs": 7.0, "sglang:cache_hit_rate": 0.5}
    values = between(before, after, 4.0)
    assert values == {
        "tokens_per_second": 50.0,
        "busy_share": pytest.approx(0.5),
        "running_requests": 7.0,
        "cache_hit_share": 0.5,
    }


def test_a_restarted_engine_counts_from_zero() -> None:
    assert between({TOKENS: 1000.0}, {TOKENS: 40.0}, 2.0)["tokens_per_second"] == 20.0


def test_what_an_engine_does_not_tell_is_absent() -> None:
    assert between({TOKENS: 0.0}, {TOKENS: 8.0}, 2.0) == {"tokens_per_second": 4.0}


def test_gpu_shares_are_means_over_the_hosts_gpus() -> None:
    text = "50, 1000, 4000\n100, 3000, 4000\n"  # as nvidia-smi prints: %, MiB, MiB
    assert gpu_shares(text) == {"host/gpu_busy_share": 0.75, "host/gpu_memory_share": 0.5}
    assert gpu_shares("") == {}
    with pytest.raises(ValueError, match="could not convert"):
        gpu_shares("[N/A], 1, 2")


def test_a_host_without_gpus_tells_its_processors() -> None:
    assert 0 <= host_usage()["host/cpu_busy_share"] <= 1
