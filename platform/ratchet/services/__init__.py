"""Embedded PostgreSQL and Valkey, and the supervisor that runs every process of one machine."""
