"""Webhooks: what happens in a project, told to addresses outside, signed and sent again until it arrives."""
