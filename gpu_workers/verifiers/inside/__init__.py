"""What runs inside a verifier's sandbox, on any Python from 3.9 and from memory: imports only the standard library."""
