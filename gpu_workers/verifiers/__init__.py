"""Verdicts of finished episodes: one module per verifier kind, and the gate a task passes before it is used."""
