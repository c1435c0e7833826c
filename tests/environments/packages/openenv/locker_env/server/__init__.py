"""The locker's server."""
