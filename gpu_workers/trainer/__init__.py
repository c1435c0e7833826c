"""The trainer: packs groups, steps a LoRA adapter, writes exact checkpoints, reports."""
