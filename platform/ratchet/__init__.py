"""Ratchet's platform: settings, routing, queues and the services of one machine."""
