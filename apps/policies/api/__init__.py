"""REST API of policies."""
