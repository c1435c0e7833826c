"""RunSpec: the frozen, hashed description of a run, validated with the path of what is wrong."""

import hashlib
import re
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts.scheduling import HealthSpec, Stragglers

# Bounds keep one spec from taking the machine: nobody has a use for more, and a slip of the keyboard is refused.
Seed = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Steps = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Rank = Annotated[int, msgspec.Meta(ge=1, le=512)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]  # the base model's context bounds it further
Small = Annotated[int, msgspec.Meta(ge=0, le=64)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
BatchSize = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Tries = Annotated[int, msgspec.Meta(ge=1, le=100)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Algorithm(StrEnum):
    SFT = "sft"
    GRPO = "grpo"


class Advantage(StrEnum):
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"


class Correction(StrEnum):
    """Off-policy correction of behaviour against trainer log-probs."""

    NONE = "none"
    TIS = "tis"


class Aggregation(StrEnum):
    TOKEN_MEAN = "token_mean"  # noqa: S105
    SEQUENCE_MEAN = "sequence_mean"
    FIXED_LENGTH = "fixed_length"


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class LoraSpec(_Spec, frozen=True, kw_only=True):
    rank: Rank = 16
    alpha: PositiveFloat = 32.0


class OptimiserSpec(_Spec, frozen=True, kw_only=True):
    learning_rate: PositiveFloat = 2e-4
    warmup_steps: Count = 2
    decay: bool = False  # linear to zero over the run after warm-up
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    grad_clip: PositiveFloat = 1.0


class AlgorithmSpec(_Spec, frozen=True, kw_only=True):
    kind: Algorithm = Algorithm.GRPO
    advantage: Advantage = Advantage.GRPO
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    correction: Correction = Correction.TIS
    correction_cap: PositiveFloat = 2.0
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    num_updates_per_batch: Tries = 1
    sft_batch_size: BatchSize = 8  # examples a step, SFT only
    sft_epochs: PositiveFloat = 1.0


class RolloutSpec(_Spec, frozen=True, kw_only=True):
    prompts_per_batch: BatchSize = 8  # B, groups a step
    group_size: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8  # G, episodes a group
    max_staleness: Small = 1  # η, versions
    temperature: PositiveFloat = 1.0
    top_p: PositiveFloat = 1.0
    max_new_tokens: Tokens = 128  # a turn
    num_shots: Small = 0  # worked examples put before the task
    group_timeout_seconds: Seconds = 300.0
    max_attempts: Tries = 3  # of a group that failed by infrastructure
    max_requeues: Small = 2  # of a task whose group went stale
    over_sampling: Fraction = 0.0  # groups admitted beyond what the batches need, as a share of a batch
    stragglers: Stragglers = Stragglers.ABORT
    recovery_share: Fraction = 0.0  # of the stragglers that are waited for all the same, chosen at random
    audit_share: Fraction = 0.1  # of the episodes that the suite's audit verifier looks at


class EvaluationSpec(_Spec, frozen=True, kw_only=True):
    dev_every: Count = 0  # steps between dev evaluations; 0: only the last checkpoint
    dev_tasks: Count = 64  # at most so many dev tasks; 0: none
    max_new_tokens: Count = 0  # 0: as in rollout
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0


class LimitsSpec(_Spec, frozen=True, kw_only=True):
    max_error_share: Fraction = 0.5  # of the last closed groups that ended infrastructure_failed, halts the run
    max_attempts: Tries = 3  # of the trainer
    max_seconds: Count = 0  # wall clock; 0: none
    max_skipped_updates: Tries = 3  # in a row, refused for NaN or infinity


class RunSpec(_Spec, frozen=True, kw_only=True):
    """`suite` is a suite's slug (newest ready version) or slug@version; `policy` a policy's slug of the project."""

    name: str = ""
    suite: str
    policy: str
    steps: Steps = 10  # RL steps; for SFT the step count follows from epochs and batch size
    seed: Seed = 0
    max_train_tasks: Count = 0  # 0: all
    algorithm: AlgorithmSpec = AlgorithmSpec()
    rollout: RolloutSpec = RolloutSpec()
    lora: LoraSpec = LoraSpec()
    optimiser: OptimiserSpec = OptimiserSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    limits: LimitsSpec = LimitsSpec()
    health: HealthSpec = HealthSpec()


class SpecError(ValueError):
    """A RunSpec that cannot be used; `path` names the field in dotted form."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def parse_run_spec(data: dict[str, Any]) -> RunSpec:
    """Build a RunSpec from plain data. Raises SpecError naming the path."""
    try:
        spec = msgspec.convert(data, RunSpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        names = [path.rstrip("`").lstrip("."), *re.findall(r"field `(\w+)`", message)]
        raise SpecError(".".join(filter(None, names)) or "spec", message) from error
    _check_combinations(spec)
    return spec


def _check_combinations(spec: RunSpec) -> None:
    if spec.algorithm.kind is Algorithm.SFT:
        return
    if spec.rollout.top_p < 1.0:
        raise SpecError("rollout.top_p", "must be 1 while training: truncation biases the importance ratio")
    if spec.rollout.top_p > 1.0:
        raise SpecError("rollout.top_p", "must be at most 1")
    if spec.rollout.group_size < 2:
        raise SpecError("rollout.group_size", "needs at least 2 episodes a group to form an advantage")
    if spec.rollout.max_staleness > 0 and spec.algorithm.correction is Correction.NONE:
        raise SpecError("algorithm.correction", "is needed when rollout.max_staleness > 0 (use tis)")


def spec_hash(spec: RunSpec) -> str:
    """SHA-256 of the canonical JSON of the whole spec, defaults included."""
    return stored_spec_hash(msgspec.to_builtins(spec))


def stored_spec_hash(data: dict[str, Any]) -> str:
    """The same of a spec as it was stored, whatever fields later versions have added."""
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()
