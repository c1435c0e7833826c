"""The gateway: an OpenAI-compatible endpoint whose models are a project's channels."""
