"""Environments of other frameworks: each in a process of its own, with their packages, behind our seams."""
