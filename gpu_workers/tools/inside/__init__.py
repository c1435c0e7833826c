"""Code that runs inside sandboxes, shipped as text: it may import nothing but the standard library."""
