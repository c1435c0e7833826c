"""Sandboxes that are containers: Docker, Podman and Kubernetes pods, with gVisor as the runtime by default."""
