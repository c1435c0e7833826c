"""Suites of verifiable tasks: splits, contracts, verifiers, hashes."""
