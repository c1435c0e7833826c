"""Disk-delta: a version is what changed since the one before; a host rebuilds it, checks all of it, then serves it."""
