"""REST API of evaluations."""
