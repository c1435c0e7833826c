"""What runs as process 1 of a sandbox, on any Python from 3.9 and from memory: imports only the standard library."""
