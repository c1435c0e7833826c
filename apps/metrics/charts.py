"""Which charts a run's page has. What they draw is in the page's run-charts.js."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chart:
    """`id` is what the page's script knows it by."""

    id: str
    title: str


_REINFORCED = (
    Chart("reward", "Reward, mean by version"),
    Chart("reward-spread", "Reward distribution"),
    Chart("latency", "Rollout latency, by version"),
    Chart("staleness", "Staleness of trained episodes"),
    Chart("spans", "Policy versions inside an episode"),
    Chart("pause", "Weight-update pause"),
    Chart("mismatch", "Train / rollout mismatch, KL k3"),
    Chart("utilisation", "Trainer: where its time goes"),
    Chart("throughput", "Training throughput"),
    Chart("engine-busy", "Engines: processor in use"),
    Chart("engine-throughput", "Engines: sampled tokens"),
    Chart("engine-requests", "Engines: requests at once"),
    Chart("tool-wait", "Tool wait of an episode"),
    Chart("gradient", "Gradient norm, before clipping"),
    Chart("entropy", "Entropy of the policy"),
)
_SUPERVISED = (
    Chart("loss", "Loss"),
    Chart("gradient", "Gradient norm, before clipping"),
    Chart("learning-rate", "Learning rate"),
    Chart("throughput", "Training throughput"),
    Chart("utilisation", "Trainer: where its time goes"),
)


def chart_list(*, supervised: bool) -> tuple[Chart, ...]:
    """In the order of the page."""
    return _SUPERVISED if supervised else _REINFORCED
