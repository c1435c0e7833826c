"""Rules that end a run by themselves: each looks at stored facts and says whether to halt, why, since which step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_workers.contracts.scheduling import HealthSpec

ERROR_WINDOW = 20  # last closed groups looked at
ERROR_LEAST = 10  # fewer say nothing
SIGNAL_BATCHES = 10  # batches' worth of groups in a row without signal
MISMATCH, SAMPLE_SIZE = "train/kl_behaviour_k3", "train/effective_sample_size"
ENTROPY, GRAD_NORM, SKIPPED = "train/entropy", "train/grad_norm", "train/skipped_updates"
HEALTH_METRICS = (MISMATCH, SAMPLE_SIZE, ENTROPY, GRAD_NORM, SKIPPED)  # what of a step's numbers the rules need


@dataclass(frozen=True)
class Halt:
    """`since_step`: the first step that broke the rule, so that the version before it is still good; 0: no step did."""

    code: str
    message: str
    since_step: int = 0


@dataclass(frozen=True)
class StepHealth:
    """The numbers of one finished step, 1 for the first."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class _Rule:
    """One of a step's numbers against its bound; a value that is no number breaks every bound."""

    code: str
    metric: str
    breaks: Callable[[float, float], bool]
    bound: Callable[[HealthSpec], float]
    says: str
    advice: str


def _above(value: float, bound: float) -> bool:
    return not value <= bound


def _below(value: float, bound: float) -> bool:
    return not value >= bound


_RULES = (
    _Rule(
        "mismatch", MISMATCH, _above, lambda h: h.max_mismatch, "the mismatch of trainer and rollout (KL k3) was {}",
        "The engine and the trainer disagree about the same tokens: compare their precision and templates, or lower "
        "optimiser.learning_rate or rollout.max_staleness",
    ),
    _Rule(
        "sample_size", SAMPLE_SIZE, _below, lambda h: h.min_effective_sample_size,
        "the effective sample size was {} of the tokens",
        "A few tokens carry the whole step: lower rollout.max_staleness or optimiser.learning_rate",
    ),
    _Rule(
        "entropy_low", ENTROPY, _below, lambda h: h.min_entropy, "the entropy was {} nats a token",
        "The policy has collapsed to one answer: lower optimiser.learning_rate, or use an entropy or KL term",
    ),
    _Rule(
        "entropy_high", ENTROPY, _above, lambda h: h.max_entropy, "the entropy was {} nats a token",
        "The policy is coming apart: lower optimiser.learning_rate, or use a KL term",
    ),
    _Rule(
        "grad_norm", GRAD_NORM, _above, lambda h: h.max_grad_norm, "the gradient norm was {}",
        "Training diverges: lower optimiser.learning_rate or optimiser.grad_clip",
    ),
)  # fmt: skip


def check_steps(steps: Sequence[StepHealth], spec: HealthSpec, max_skipped: int) -> Halt | None:
    """`steps`: the newest, newest first. A rule fires when `spec.window` steps in a row break it."""
    for rule in _RULES:
        bound = rule.bound(spec)
        found = [s for s in steps if rule.metric in s.values and s.values.get(SKIPPED, 0.0) == 0.0][: spec.window]
        if bound <= 0 or len(found) < spec.window:
            continue
        if all(rule.breaks(s.values[rule.metric], bound) for s in found):
            values = ", ".join(f"{s.values[rule.metric]:.3g}" for s in reversed(found))
            return Halt(
                rule.code,
                f"In the last {spec.window} steps {rule.says.format(values)} (limit {bound:g}). {rule.advice}.",
                found[-1].step,
            )
    return _check_skipped(steps, max_skipped)


def _check_skipped(steps: Sequence[StepHealth], max_skipped: int) -> Halt | None:
    window = steps[:max_skipped]
    if len(window) < max_skipped or not all(s.values.get(SKIPPED, 0.0) > 0 for s in window):
        return None
    return Halt(
        "non_finite",
        f"The updates of {max_skipped} steps in a row were refused for NaN or infinity: lower "
        "optimiser.learning_rate or start from an earlier checkpoint.",
        window[-1].step,
    )


def check_errors(outcomes: Sequence[str], reasons: Sequence[str], max_share: float) -> Halt | None:
    """`outcomes` of the last closed groups, newest first, with their reasons. Failed or rejected, none can be used."""
    window = list(outcomes[:ERROR_WINDOW])
    failed = [index for index, outcome in enumerate(window) if outcome in ("infrastructure_failed", "rejected")]
    if len(window) < ERROR_LEAST or len(failed) <= max_share * len(window):
        return None
    share = f"{len(failed)} of the last {len(window)} groups"
    how = "failed by infrastructure or were rejected"
    return Halt("error_share", f"{share} {how} (limit {max_share:.0%}). Last: {reasons[failed[0]]}")


def signal_window(batch_size: int) -> int:
    """Closed groups that the rule on zero variance looks at."""
    return max(ERROR_WINDOW, SIGNAL_BATCHES * batch_size)


def check_signal(outcomes: Sequence[str], batch_size: int, max_share: float = 1.0) -> Halt | None:
    """Rewards that are all equal, group after group, would generate for ever without a step.

    So would a rejected group now and then among them.
    """
    least = signal_window(batch_size)
    window = outcomes[:least]
    without = sum(outcome in ("zero_variance", "rejected") for outcome in window)
    if max_share <= 0 or len(window) < least or without < max_share * least:
        return None
    return Halt(
        "no_signal",
        f"{without} of the last {least} groups had no spread of reward that could be used (limit {max_share:.0%}), so "
        "little or nothing can be learnt: the tasks are solved or failed by all. Use tasks of another difficulty, a "
        "larger group_size, or a policy that solves some of them.",
    )


def check_stall(quiet_seconds: float, stall_seconds: float, waiting_for: str) -> Halt | None:
    """Nothing has finished for long: neither a step nor a group."""
    if stall_seconds <= 0 or quiet_seconds < stall_seconds:
        return None
    return Halt(
        "stall",
        f"Neither a step nor a group finished for {quiet_seconds:.0f} s (limit {stall_seconds:g} s). "
        f"The run was waiting: {waiting_for or 'for groups from the rollout workers'}",
    )
