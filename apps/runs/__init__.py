"""Runs: attempts, groups, episodes, batches, the ledger and the reconciler."""
