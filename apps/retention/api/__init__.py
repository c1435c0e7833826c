"""REST API of retention."""
