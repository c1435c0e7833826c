"""Weight transfer: brings policy versions to the fleet; installed means verified."""
