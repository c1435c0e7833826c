"""Runs one group: its episodes, their tools and verdicts, the group file and the report."""
