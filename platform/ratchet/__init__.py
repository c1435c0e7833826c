"""Ratchet's platform: settings, routing, queues and the services of one machine."""

__version__ = "0.1.0"
