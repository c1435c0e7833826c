"""Metric points and series, and the live view over websockets."""
