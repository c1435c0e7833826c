"""REST API of audit."""
