"""Evaluations on dev, held-out and regression splits, and their statistics."""
