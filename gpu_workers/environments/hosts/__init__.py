"""Programs that run in the virtual environment of a framework, with its packages and the standard library alone."""
