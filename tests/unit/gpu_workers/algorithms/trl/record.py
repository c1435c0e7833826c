"""Records the losses and gradients of TRL's own GRPOTrainer on fixed tensors. Run by `make trl-losses`, in TRL's venv.

Only the forward pass of a model is replaced: log-probs and entropies are given as leaf tensors. Everything after it is
TRL's `_compute_loss`, called on a trainer that was never constructed but has every option it reads.
"""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from trl import GRPOTrainer

LENGTHS = [6, 1, 4, 9]
MAX_LENGTH = 12
HOLE = (3, 2)  # a token of episode 3 that is an observation
COMMON = {"epsilon_low": 0.2, "epsilon_high": 0.2, "delta": None, "beta": 0.0, "entropy_coef": 0.0, "correct": False}
CASES = {
    "grpo": {"loss_type": "grpo", "level": "token"},
    "bnpo": {"loss_type": "bnpo", "level": "token"},
    "dapo": {"loss_type": "dapo", "level": "token", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo", "level": "token"},
    "gspo": {"loss_type": "grpo", "level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
    "dual_clip": {"loss_type": "bnpo", "level": "token", "delta": 1.3},
    "kl": {"loss_type": "grpo", "level": "token", "beta": 0.3},
    "entropy": {"loss_type": "bnpo", "level": "token", "entropy_coef": 0.2},
    "tis": {"loss_type": "bnpo", "level": "token", "beta": 0.1, "correct": True},
}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(20)
    shape = (len(LENGTHS), max(LENGTHS))

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator)

    mask = torch.zeros(shape)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1.0
    mask[HOLE] = 0.0
    current = -torch.rand(shape, generator=generator) * 3
    old = current + noise(0.25)
    return {
        "mask": mask,
        "current": current,
        "old": old,
        "behaviour": old + noise(0.4),
        "reference": current + noise(0.5),
        "entropy": torch.rand(shape, generator=generator) * 2,
        "advantage": torch.tensor([1.2, -0.7, -1.4, 0.4]),
    }


def trl_loss(given: dict[str, torch.Tensor], case: dict) -> dict:
    options = COMMON | case
    current, entropy = (given[name].clone().requires_grad_() for name in ("current", "entropy"))
    trainer = object.__new__(GRPOTrainer)
    namespace = {
        "_get_per_token_logps_and_entropies": lambda *_, **__: (current, entropy, None),
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
        "importance_sampling_level": options["level"], "beta": options["beta"], "loss_type": options["loss_type"],
        "epsilon_low": options["epsilon_low"], "epsilon_high": options["epsilon_high"],
        "use_vllm": options["correct"], "vllm_importance_sampling_correction": options["correct"],
        "max_completion_length": MAX_LENGTH, "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": options["entropy_coef"] > 0, "use_adaptive_entropy": False,
        "entropy_coef": options["entropy_coef"], "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(delta=options["delta"], steps_per_generation=1, use_bias_correction_kl=False),
        "accelerator": SimpleNamespace(
            num_processes=1, sync_gradients=False, gather=lambda value: value, reduce=lambda value, **_: value
        ),
    }  # fmt: skip
    trainer.__dict__.update(namespace)
    rows = len(LENGTHS)
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long), "prompt_mask": torch.ones(rows, 1),
        "completion_ids": torch.zeros(given["mask"].shape, dtype=torch.long), "completion_mask": given["mask"],
        "advantages": given["advantage"], "old_per_token_logps": given["old"],
        "ref_per_token_logps": given["reference"], "num_items_in_batch": given["mask"].sum(),
        "importance_sampling_ratio": (given["old"] - given["behaviour"]).exp().clamp(max=2.0),
    }  # fmt: skip
    loss = trainer._compute_loss(None, inputs)
    loss.backward()
    grad_entropy = entropy.grad if entropy.grad is not None else torch.zeros_like(entropy)
    return {
        "options": options,
        "loss": loss.item(),
        "grad_current": (current.grad * given["mask"]).tolist(),
        "grad_entropy": (grad_entropy * given["mask"]).tolist(),
    }


def main() -> None:
    given = tensors()
    recorded = {
        "made_by": f"trl {trl.__version__}, torch {torch.__version__}: GRPOTrainer._compute_loss, see record.py",
        "max_length": MAX_LENGTH,
        "tensors": {name: value.tolist() for name, value in given.items()},
        "cases": {name: trl_loss(given, case) for name, case in CASES.items()},
    }
    Path(__file__).with_name("losses.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
