"""What is kept how long, what is pinned, and the sweep that reports before it deletes."""
