"""Peer-to-peer transfer: an engine's host pulls a version out of the memory of the fleet worker's host."""
