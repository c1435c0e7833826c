"""Frozen wire types, enums and Protocols shared by the control plane and the workers; no torch, no Django."""
