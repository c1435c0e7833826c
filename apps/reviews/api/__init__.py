"""REST API of reviews."""
