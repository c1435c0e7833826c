"""Commands of retention."""
