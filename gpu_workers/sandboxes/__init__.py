"""Isolated environments of episodes and of verifier programs: backends, the tools inside, what leaves them."""
