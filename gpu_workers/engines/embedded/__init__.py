"""A CPU inference server for Llama-family models that speaks SGLang's own HTTP API."""
