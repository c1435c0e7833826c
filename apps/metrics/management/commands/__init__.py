"""Commands of metrics."""
