"""Builds an engine from options and serves it until a signal arrives."""

import argparse
import logging
import os
import socket

import torch
import uvicorn

from gpu_workers.engines.embedded.branches import BRANCH_TOKENS
from gpu_workers.engines.embedded.config import EngineConfigError, LlamaConfig
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.model import Model, load_model
from gpu_workers.engines.embedded.scheduler import Limits
from gpu_workers.engines.embedded.server import build_app
from gpu_workers.engines.embedded.text import Text
from gpu_workers.process import keep_freed_memory

logger = logging.getLogger(__name__)
DEFAULT_CACHE_BYTES = 640 * 2**20
MAX_DEFAULT_TOKENS = 131072
# Cached prefixes of all lengths come and go between activations: measured, this kept the process smallest, no slower.
KEPT_BLOCK_BYTES = 4 * 2**20
MIN_CACHE_TOKENS = 4 * BRANCH_TOKENS
# Longer than clients keep idle connections: a server that closes first loses requests already on their way.
KEEP_ALIVE_SECONDS = 120


def build_engine(options: argparse.Namespace) -> Engine:
    """Load the model and check the limits. Raises EngineConfigError naming the option."""
    keep_freed_memory(KEPT_BLOCK_BYTES)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = _load(options)
    if options.max_running < 1:
        raise EngineConfigError(f"--max-running is {options.max_running}; it must be at least 1")
    total = options.max_total_tokens or _default_tokens(model.config, model.weights.dtype, options.max_running)
    limits = Limits(
        max_running=options.max_running,
        max_total_tokens=total,
        prefill_tokens_per_step=max(options.prefill_tokens_per_step, 1),
        max_loras=options.max_loras,
        max_lora_rank=options.max_lora_rank,
    )
    if limits.cache_tokens < MIN_CACHE_TOKENS:
        raise EngineConfigError(
            f"--max-total-tokens {total} leaves {limits.cache_tokens} tokens beside {options.max_running} rows of "
            f"{BRANCH_TOKENS}; give at least {options.max_running * BRANCH_TOKENS + MIN_CACHE_TOKENS}, "
            f"or lower --max-running"
        )
    text = Text(options.model, model.config.eos_ids)
    return Engine(model, text, limits, options.served_model_name)


def _load(options: argparse.Namespace) -> Model:
    if not options.deterministic:
        return load_model(options.model, options.dtype)
    if options.dtype == "bfloat16":
        raise EngineConfigError("--deterministic computes in float32; leave --dtype bfloat16 out")
    if options.deterministic_rows < 1:
        raise EngineConfigError(f"--deterministic-rows is {options.deterministic_rows}; it must be at least 1")
    torch.set_num_threads(1)
    return load_model(options.model, "float32", options.deterministic_rows)


def _default_tokens(config: LlamaConfig, dtype: torch.dtype, max_running: int) -> int:
    bytes_per_token = config.num_layers * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
    floor = max_running * BRANCH_TOKENS + config.context_length
    return max(min(DEFAULT_CACHE_BYTES // bytes_per_token, MAX_DEFAULT_TOKENS), floor)


def build_server(engine: Engine, log_level: str = "warning") -> uvicorn.Server:
    """The HTTP server of an engine, to be run on a listening socket."""
    config = uvicorn.Config(
        build_app(engine),
        log_level=log_level,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    return uvicorn.Server(config)


def serve(engine: Engine, listener: socket.socket, log_level: str = "info") -> None:
    """Run until SIGINT or SIGTERM."""
    server = build_server(engine, "warning" if log_level == "info" else log_level)
    engine.start()
    host, port = listener.getsockname()[:2]
    logger.info(
        "engine ready on http://%s:%d: %s, %s, %d rows, %d tokens", host, port, engine.model.path.name,
        engine.model.weights.dtype, engine.limits.max_running, engine.limits.max_total_tokens,
    )  # fmt: skip
    try:
        server.run(sockets=[listener])
    finally:
        engine.stop()
