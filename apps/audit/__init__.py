"""The append-only record of who did what, on which evidence."""
