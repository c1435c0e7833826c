"""REST API of tasks."""
