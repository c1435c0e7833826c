"""Tools of episodes: a base class for authors, built-in tools, MCP servers; their checks and their calls."""

from gpu_workers.tools.sdk import Tool

__all__ = ["Tool"]
