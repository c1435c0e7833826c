"""Tamper detectors: rules as data, their pure evaluation over a finished episode, the decoys they watch."""
