"""The `ratchet` command."""
