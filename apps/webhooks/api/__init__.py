"""REST API of webhooks."""
