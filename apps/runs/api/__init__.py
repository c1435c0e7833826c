"""REST API of runs."""
