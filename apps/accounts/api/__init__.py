"""REST API of accounts."""
