"""The control plane: Django apps, one noun each."""
