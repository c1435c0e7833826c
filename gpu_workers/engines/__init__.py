"""Rollout engines: the client of SGLang's HTTP API, a CPU server that speaks it, and a scripted fake."""
