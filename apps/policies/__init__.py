"""Policies, their lineage, and the channels that serve them."""
