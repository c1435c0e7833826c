"""Builders of suites: pure functions from seeds, wheels or lines of text to a definition and its tasks."""
