"""RunSpec: the frozen, hashed description of a run, validated with the path of what is wrong."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts.scheduling import HealthSpec, Stragglers
from gpu_workers.contracts.transfers import Transfer

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
Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]  # of Adam's averages
Temperature = Annotated[float, msgspec.Meta(ge=0.01, le=100)]  # below it all probability but one token's rounds to 0
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Algorithm(StrEnum):
    SFT = "sft"
    GRPO = "grpo"  # clipped token ratio; advantage and aggregation make it Dr. GRPO, RLOO, DAPO, REINFORCE++
    GSPO = "gspo"  # clipped sequence ratio
    PPO = "ppo"  # clipped token ratio with a value function


class Advantage(StrEnum):
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce_pp"
    GAE = "gae"  # PPO's, and only PPO's


GROUP_ADVANTAGES = frozenset({Advantage.GRPO, Advantage.DR_GRPO, Advantage.RLOO})  # compare siblings of one task


class Correction(StrEnum):
    """Off-policy correction of behaviour against trainer log-probs."""

    NONE = "none"
    TIS = "tis"
    DECOUPLED = "decoupled"  # the name of tis where clipping is around π_old (decoupled PPO)
    ICEPOP = "icepop"


class KlEstimator(StrEnum):
    """Of KL(π‖π_ref). k1 is taken off the reward; k2 and k3 are added to the loss."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class Aggregation(StrEnum):
    TOKEN_MEAN = "token_mean"  # noqa: S105
    SEQUENCE_MEAN = "sequence_mean"
    FIXED_LENGTH = "fixed_length"


class Update(StrEnum):
    """What is trained."""

    LORA = "lora"  # an adapter on a frozen model
    FULL = "full"  # every weight


class Schedule(StrEnum):
    """Of the learning rate after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"  # to min_rate_share at the last step
    COSINE = "cosine"


class ComputeDtype(StrEnum):
    """Of activations and products. Master weights, log-probs and losses are float32 whatever it is."""

    AUTO = "auto"  # the base model's bfloat16 where the processor multiplies it natively
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class LoraSpec(_Spec, frozen=True, kw_only=True):
    rank: Rank = 16
    alpha: PositiveFloat = 32.0


class OptimiserSpec(_Spec, frozen=True, kw_only=True):
    learning_rate: PositiveFloat = 2e-4
    warmup_steps: Count = 2
    decay: bool = False  # short for schedule linear
    schedule: Schedule = Schedule.CONSTANT
    min_rate_share: Fraction = 0.0  # of the rate, where a schedule ends
    beta1: Decay = 0.9
    beta2: Decay = 0.95
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
    dual_clip: NonNegative = 0.0  # bound c > 1 on the ratio where the advantage is negative; 0: none
    icepop_low: PositiveFloat = 0.5  # icepop: tokens whose ratio is outside have no loss
    icepop_high: PositiveFloat = 5.0
    sequence_mask: NonNegative = 0.0  # episodes with |mean(π_old − μ)|·√n above it have no loss; 0: none
    kl_coefficient: NonNegative = 0.0  # towards the policy the run started from
    kl_estimator: KlEstimator = KlEstimator.K3
    entropy_coefficient: NonNegative = 0.0  # of the bonus
    value_coefficient: NonNegative = 0.1  # PPO: of the value loss
    value_clip: PositiveFloat = 0.2  # PPO: how far a value may move from V_old
    gamma: Fraction = 1.0  # PPO
    gae_lambda: Fraction = 1.0  # PPO; 1 makes the return Monte Carlo
    num_updates_per_batch: Tries = 1
    sft_batch_size: BatchSize = 8  # examples a step, SFT only
    sft_epochs: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0

    @property
    def needs_values(self) -> bool:
        """Whether a value function is trained."""
        return self.kind is Algorithm.PPO


class RolloutSpec(_Spec, frozen=True, kw_only=True):
    prompts_per_batch: BatchSize = 8  # B, groups a step
    group_size: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8  # G, episodes a group
    max_staleness: Small = 1  # η, versions
    temperature: Temperature = 1.0
    top_p: PositiveFloat = 1.0
    max_new_tokens: Tokens = 128  # a turn
    num_shots: Small = 0  # worked examples put before the task
    group_timeout_seconds: Seconds = 300.0
    max_attempts: Tries = 3  # of a group that failed by infrastructure
    max_requeues: Small = 2  # of a task whose group went stale
    over_sampling: Fraction = 0.0  # groups admitted beyond what the batches need, as a share of a batch
    stragglers: Stragglers = Stragglers.ABORT
    recovery_share: Fraction = 0.0  # of the stragglers that are waited for all the same, chosen at random
    dynamic_sampling: bool = True  # groups whose rewards are all equal make room for others and are counted
    audit_share: Fraction = 0.1  # of the episodes that the suite's audit verifier looks at


class TrainerSpec(_Spec, frozen=True, kw_only=True):
    update: Update = Update.LORA
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    transfer: Transfer = Transfer.AUTO  # how versions reach the engines; lora: adapter, full: any other
    activation_checkpointing: bool = False  # layers are computed again in the backward pass: less memory, more time
    max_row_tokens: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 1024  # of a packed row, the micro-batch


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
    trainer: TrainerSpec = TrainerSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    limits: LimitsSpec = LimitsSpec()
    health: HealthSpec = HealthSpec()


class SpecError(ValueError):
    """A RunSpec that cannot be used; `path` names the field in dotted form, `others` what else is wrong."""

    def __init__(self, path: str, message: str, others: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message
        self.others = [*others]


# What an algorithm is by definition; a spec that says nothing gets it, one that says something else is refused or kept.
_OF_KIND: dict[str, dict[str, Any]] = {
    Algorithm.GSPO: {"aggregation": Aggregation.SEQUENCE_MEAN, "clip_low": 3e-4, "clip_high": 4e-4},
    Algorithm.PPO: {"advantage": Advantage.GAE},
}


def parse_run_spec(data: dict[str, Any]) -> RunSpec:
    """Build a RunSpec from plain data. Raises SpecError naming the path."""
    try:
        spec = msgspec.convert(_with_defaults_of_kind(data), RunSpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        names = [path.rstrip("`").lstrip("."), *re.findall(r"field `(\w+)`", message)]
        raise SpecError(".".join(filter(None, names)) or "spec", message) from error
    if problems := [*_problems(spec)]:
        raise SpecError(*problems[0], problems[1:])
    return spec


def _with_defaults_of_kind(data: dict[str, Any]) -> dict[str, Any]:
    algorithm = data.get("algorithm") if isinstance(data, dict) else None
    if not isinstance(algorithm, dict):
        return data
    kind = algorithm.get("kind")
    defaults = _OF_KIND.get(kind, {}) if isinstance(kind, str) else {}
    return data | {"algorithm": defaults | algorithm}


def _problems(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Unlawful combinations: the field's path and what to do."""
    optimiser, algorithm, rollout = spec.optimiser, spec.algorithm, spec.rollout
    if optimiser.decay and optimiser.schedule is Schedule.COSINE:
        yield "optimiser.decay", "is short for schedule linear: leave it out with schedule cosine"
    yield from _transfer_problems(spec.trainer, spec.evaluation)
    if algorithm.kind is Algorithm.SFT:
        return
    if rollout.top_p < 1.0:
        yield "rollout.top_p", "must be 1 while training: truncation biases the importance ratio"
    if rollout.top_p > 1.0:
        yield "rollout.top_p", "must be at most 1"
    if rollout.recovery_share and rollout.stragglers is Stragglers.WAIT:
        yield "rollout.recovery_share", "draws nothing where every straggler is waited for: use abort or continue"
    yield from _advantage_problems(algorithm)
    if rollout.group_size < 2 and algorithm.advantage in GROUP_ADVANTAGES:
        yield "rollout.group_size", f"needs at least 2 episodes a group to form the advantage {algorithm.advantage}"
    if rollout.max_staleness > 0 and algorithm.correction is Correction.NONE:
        yield "algorithm.correction", "is needed when rollout.max_staleness > 0 (use tis or icepop)"
    if algorithm.icepop_low >= algorithm.icepop_high:
        yield "algorithm.icepop_low", f"must be below icepop_high, which is {algorithm.icepop_high}"
    if algorithm.clip_low >= 1.0:
        yield "algorithm.clip_low", "must be below 1: the ratio's lower bound is 1 − clip_low"
    if 0.0 < algorithm.dual_clip <= 1.0 + algorithm.clip_high:
        yield "algorithm.dual_clip", f"must be above 1 + clip_high = {1.0 + algorithm.clip_high:g}, or 0 for none"


def _transfer_problems(trainer: TrainerSpec, evaluation: EvaluationSpec) -> Iterator[tuple[str, str]]:
    transfer = trainer.transfer
    if trainer.update is Update.LORA and transfer not in (Transfer.AUTO, Transfer.ADAPTER):
        yield "trainer.transfer", f"is {transfer}, which replaces all weights: use adapter or auto with update lora"
    if trainer.update is Update.FULL and transfer is Transfer.ADAPTER:
        others = ", ".join(one for one in Transfer if one not in (Transfer.AUTO, Transfer.ADAPTER))
        yield "trainer.transfer", f"is adapter, but update full trains all weights: use auto or one of {others}"
    if trainer.update is Update.FULL and evaluation.dev_every:
        because = "an evaluation in between would hold up every newer version on the run's engines"
        yield "evaluation.dev_every", f"must be 0 with trainer.update full: {because}; the last checkpoint is evaluated"


def _advantage_problems(algorithm: AlgorithmSpec) -> Iterator[tuple[str, str]]:
    ppo = algorithm.kind is Algorithm.PPO
    if ppo and algorithm.advantage is not Advantage.GAE:
        yield "algorithm.advantage", f"is {algorithm.advantage}; PPO takes gae (kind grpo has the group advantages)"
    if not ppo and algorithm.advantage is Advantage.GAE:
        yield "algorithm.advantage", "gae needs a value function: set algorithm.kind to ppo"
    if algorithm.kind is Algorithm.GSPO and algorithm.aggregation is not Aggregation.SEQUENCE_MEAN:
        yield "algorithm.aggregation", "GSPO's objective is a mean over sequences: use sequence_mean"
    if ppo and algorithm.value_coefficient == 0.0:
        yield "algorithm.value_coefficient", "must be above 0: without it PPO's value function learns nothing"


def drops_zero_variance(spec: RunSpec) -> bool:
    """Whether a group whose rewards are all equal is left out: its advantages are zero, and others take its place."""
    return spec.rollout.dynamic_sampling and spec.algorithm.advantage in GROUP_ADVANTAGES


def spec_hash(spec: RunSpec) -> str:
    """SHA-256 of the canonical JSON of the whole spec, defaults included."""
    return stored_spec_hash(msgspec.to_builtins(spec))


def stored_spec_hash(data: dict[str, Any]) -> str:
    """The same of a spec as it was stored, whatever fields later versions have added."""
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()
