"""What runs as process 1 of a container, beside the resident server's own modules; any Python from 3.9, from memory."""
