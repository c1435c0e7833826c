"""REST API of metrics."""
