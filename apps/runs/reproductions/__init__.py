"""Stored episodes played again: asked for, answered by a worker, and what follows for the task."""
