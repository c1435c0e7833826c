"""The one registry of metrics: every name with its unit, definition, axis, and whether it is reported or measured."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from apps.metrics import histograms
from gpu_workers.contracts.enums import Boundary


class Source(StrEnum):
    REPORTED = "reported"  # what the trainer says of itself
    MEASURED = "measured"  # what the platform computed from stored episodes and answers of the fleet


class Axis(StrEnum):
    STEP = "step"  # trainer steps, 1 for the first
    VERSION = "version"  # policy version that generated, or was installed


class Kind(StrEnum):
    SERIES = "series"  # a number, or a few, at each position of the axis
    HISTOGRAM = "histogram"  # a distribution that merges; percentiles exact up to 256 different values, then within 1 %


@dataclass(frozen=True)
class Metric:
    """`unit` is written on axes; empty for shares and counts without one."""

    name: str
    title: str
    unit: str
    definition: str
    source: Source = Source.REPORTED
    axis: Axis = Axis.STEP
    kind: Kind = Kind.SERIES


def _train(name: str, title: str, unit: str, definition: str) -> Metric:
    return Metric(f"train/{name}", title, unit, definition)


def _measured(name: str, title: str, unit: str, definition: str, axis: Axis = Axis.STEP) -> Metric:
    return Metric(name, title, unit, definition, Source.MEASURED, axis)


def _histogram(name: str, title: str, unit: str, definition: str, axis: Axis = Axis.VERSION) -> Metric:
    return Metric(name, title, unit, definition, Source.MEASURED, axis, Kind.HISTOGRAM)


_LEARNING = (
    _train("reward_mean", "Reward of the batch", "reward", "Mean over the episodes trained on in the step."),
    _train("reward_std", "Spread of reward", "reward", "Standard deviation over the episodes trained on."),
    _train("loss", "Loss", "", "Policy loss (cross-entropy in supervised runs) over the whole batch."),
    _train("grad_norm", "Gradient norm", "", "L2 norm before clipping, over all trained parameters."),
    _train("learning_rate", "Learning rate", "", "Of the step's last update."),
    _train("clip_fraction", "Clip fraction", "share", "Sampled tokens whose ratio was clipped."),
    _train("clip_fraction_above", "Clipped above", "share", "Ratio above the upper bound, advantage positive."),
    _train("clip_fraction_below", "Clipped below", "share", "Ratio below the lower bound, advantage negative."),
    _train("dual_clip_fraction", "Dual clip", "share", "Advantage negative and the ratio above the dual clip."),
    _train("kl_old_k3", "KL of the step, k3", "nats per token", "Of the policy before the step against the one in it."),
    _train(
        "kl_reference", "KL to the start, estimate", "nats per token", "By the run's estimator; 0 without a KL term."
    ),
    _train("value_loss", "Value loss", "", "Of PPO's value function over the whole batch."),
    _train("value_clip_fraction", "Value clip", "share", "Tokens whose value moved further than value_clip."),
    _train("explained_variance", "Explained variance", "share", "Of the returns by the values before the step."),
    _train("entropy", "Entropy", "nats per token", "Of the policy on sampled tokens."),
    _train("target_probability", "Probability of the target", "", "Of the reference's tokens, in supervised runs."),
    _train("skipped_updates", "Skipped updates", "updates", "Updates refused for NaN or infinite gradients."),
    _train("zero_variance_share", "Groups without signal", "share", "Of the batch's groups, rewards all equal."),
)
_MISMATCH = (
    _train("kl_behaviour_k3", "Train / rollout mismatch, KL k3", "nats per token", "exp(Δ) − Δ − 1, Δ = π_old − μ."),
    _train("logprob_mismatch_mean", "Log-prob mismatch, mean", "nats", "Mean |π_old − μ| over sampled tokens."),
    _train("logprob_mismatch_max", "Log-prob mismatch, largest", "nats", "Largest |π_old − μ| of the batch."),
    _train("importance_ratio_max", "Importance ratio, largest", "", "Largest exp(π_old − μ), before truncation."),
    _train("effective_sample_size", "Effective sample size", "share", "(Σk)² / (n·Σk²) of the ratios k."),
    _train("truncated_share", "Truncated weights", "share", "Tokens whose ratio exceeds the correction's cap."),
    _train("masked_share", "Masked tokens", "share", "Sampled tokens whose policy loss the correction set to 0."),
    _train("dropped_episode_share", "Masked episodes", "share", "Episodes that the sequence mask left out."),
    _train("staleness_mean", "Staleness, mean", "versions", "Age of the batch's episodes at consumption."),
    _train("staleness_max", "Staleness, largest", "versions", "Never above the run's bound."),
)
_TRAINER = (
    _train("step_seconds", "Step", "s", "Computation of the step, without waiting and publishing."),
    _train("train_seconds", "Training", "s", "From batch received to weights updated."),
    _train("wait_seconds", "Wait for a batch", "s", "The trainer had nothing to do."),
    _train("publish_seconds", "Publishing", "s", "Until the checkpoint was durable."),
    _train("tokens_per_second", "Training throughput", "tokens/s", "Tokens of the batch over the step's seconds."),
    _train("num_tokens", "Tokens", "tokens", "Of the batch, prompts included."),
    _train("num_sampled_tokens", "Sampled tokens", "tokens", "Tokens with a loss."),
    _train("num_packed_tokens", "Packed tokens", "tokens", "Computed after packing shared prompts."),
    _train("cpu_seconds", "CPU of the trainer", "CPU-s", "Of this attempt's process so far."),
    _train("peak_memory_bytes", "Peak memory of the trainer", "bytes", "Resident set of this attempt's process."),
)
_ROLLOUT = (
    _measured("rollout/reward_mean", "Reward, trained groups", "reward", "Recomputed from the step's stored episodes."),
    _measured("rollout/success_share", "Success, trained groups", "share", "Episodes whose verdict is pass."),
    _measured("rollout/latency_p50_seconds", "Episode latency p50", "s", "Of the step's episodes."),
    _measured("rollout/latency_p90_seconds", "Episode latency p90", "s", "Of the step's episodes."),
    _measured("rollout/latency_p95_seconds", "Episode latency p95", "s", "Of the step's episodes."),
    _measured("rollout/latency_p99_seconds", "Episode latency p99", "s", "Of the step's episodes."),
    _measured("rollout/tool_seconds_mean", "Tool wait an episode", "s", "Mean over the step's episodes."),
    _measured("rollout/num_sampled_tokens_mean", "Length of an episode", "tokens", "Sampled tokens, mean."),
    _measured("rollout/num_turns_mean", "Turns of an episode", "turns", "Mean over the step's episodes."),
    _measured("rollout/invalid_call_share", "Invalid tool calls", "share", "Of the step's tool calls."),
    _measured("rollout/staleness_mean", "Staleness of trained groups", "versions", "Mean age at consumption."),
)
_GROUP = (
    _measured(
        "group/reward_mean", "Reward of a group", "reward", "Every finished group, dropped ones too.", Axis.VERSION
    ),
    _measured("group/reward_std", "Spread inside a group", "reward", "0: no signal.", Axis.VERSION),
    _measured("group/duration_seconds", "Time of a group", "s", "From taken up to reported.", Axis.VERSION),
)
_FLEET = (
    _measured(
        "fleet/pause_seconds", "Weight-update pause", "s", "Longest gap between tokens in the install.", Axis.VERSION
    ),
    _measured("fleet/steady_gap_seconds", "Gap without update", "s", "The same, before the install.", Axis.VERSION),
    _measured("fleet/install_seconds", "Install", "s", "From message to confirmed by every engine.", Axis.VERSION),
    _measured("fleet/update_bytes", "Moved in an install", "bytes", "Read from the store to bring it.", Axis.VERSION),
    _measured(
        "fleet/update_density", "Changed by an install", "share", "Elements that differ, of all weights.", Axis.VERSION
    ),
    _measured("fleet/policy_version", "Policy version on the engines", "version", "When confirmed.", Axis.VERSION),
)
_TIME = (
    _measured("time/engine_seconds", "Engine", "s", "Episodes of the step waited for tokens being computed, summed."),
    _measured("time/tool_seconds", "Tool wait", "s", "Episodes of the step waited for their tools, summed."),
    _measured("time/verifier_seconds", "Verifier", "s", "Episodes of the step were judged, summed."),
    _measured("time/queue_seconds", "Queue", "s", "The step's groups waited for a worker, requests for the engine."),
    _measured("time/trainer_seconds", "Trainer", "s", "From batch received to weights updated."),
    _measured("time/weight_update_seconds", "Weight update", "s", "Until the step's checkpoint was durable."),
    _measured("time/idle_seconds", "Idle", "s", "The trainer waited for the step's batch."),
)
_ERRORS = tuple(
    _measured(
        f"errors/{boundary}", f"Episodes ended at the {boundary} boundary", "episodes", "Of each group.", Axis.VERSION
    )
    for boundary in Boundary
)
_DISTRIBUTIONS = (
    _histogram(histograms.REWARD, "Reward", "reward", "Scored episodes of every finished group."),
    _histogram(histograms.LATENCY, "Episode latency", "s", "From start to verdict, every finished group."),
    _histogram(histograms.TOOL_WAIT, "Tool wait", "s", "Time an episode waited for its tools."),
    _histogram(histograms.QUEUE_WAIT, "Queue wait", "s", "Time an episode's requests waited at the engine."),
    _histogram(histograms.LENGTH, "Length", "tokens", "Sampled tokens of an episode."),
    _histogram(histograms.STALENESS, "Staleness", "versions", "Age of trained episodes at consumption.", Axis.STEP),
)
_PROCESS = (
    Metric("trainer/busy_cores", "Trainer: processor", "cores", "CPU seconds a second of the trainer's process."),
    Metric("trainer/memory_bytes", "Trainer: memory", "bytes", "Resident set of the trainer's process."),
    Metric("host/cpu_busy_share", "Hosts: processors", "share", "Of all cores of the fleet worker's host, in use."),
    Metric("host/gpu_busy_share", "Hosts: GPUs", "share", "Utilisation by nvidia-smi, mean over the host's GPUs."),
    Metric("host/gpu_memory_share", "Hosts: GPU memory", "share", "In use, mean over the host's GPUs."),
)

_ENGINE = (
    Metric("engine/tokens_per_second", "Engines: throughput", "tokens per second", "Sampled by the whole fleet."),
    Metric("engine/busy_share", "Engines: busy", "share of a core", "CPU seconds per second, mean over engines."),
    Metric("engine/running_requests", "Engines: running requests", "requests", "In the decode batches."),
    Metric("engine/queued_requests", "Engines: queued requests", "requests", "Waiting for a place."),
    Metric("engine/cache_hit_share", "Engines: prefix cache", "share", "Prompt tokens found cached, since the start."),
)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for group in (
        *(_LEARNING, _MISMATCH, _TRAINER, _ROLLOUT, _GROUP, _FLEET, _TIME, _ERRORS, _DISTRIBUTIONS, _ENGINE, _PROCESS),
    )
    for metric in group
}


def describe(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """What pages need to draw these series; a name the registry lacks is shown as reported, without unit."""
    return {name: asdict(METRICS.get(name) or Metric(name, name, "", "Not in the registry.")) for name in names}
