"""Promotion gates, decisions, and moving a channel forward or back."""
