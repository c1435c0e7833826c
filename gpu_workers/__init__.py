"""The data plane: rollout, verification, training and serving. Imports neither Django nor `apps`."""
