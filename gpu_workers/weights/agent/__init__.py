"""The agent on an engine's host: keeps its local checkpoint at the wanted version."""
