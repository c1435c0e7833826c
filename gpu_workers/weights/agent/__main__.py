"""`python -m gpu_workers.weights.agent --store URL --cache FOLDER --port N`: the agent of this host.

It keeps the checkpoint that this host's engines load. ROLLOUT_AGENT_SECRET must be the fleet worker's.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import uvicorn

from gpu_workers.contracts.store import ObjectStore
from gpu_workers.listening import listen
from gpu_workers.weights.agent.app import make_app
from gpu_workers.weights.delta.keeping import CheckpointKeeper
from gpu_workers.weights.peer.keeping import PeerKeeper

EXIT_FAILED, EXIT_USAGE = 1, 2
MIN_SECRET_LENGTH = 32


def main(arguments: list[str] | None = None) -> int:
    """Check the options, listen, serve until a signal. Any moment is safe to end it."""
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.weights.agent", description=__doc__)
    parser.add_argument("--store", default=os.environ.get("OBJECT_STORE_URL", ""), help="default: OBJECT_STORE_URL")
    parser.add_argument("--cache", type=Path, required=True, help="room for three copies of the model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--peer-address", default="127.0.0.1", help="of this host, for pulling from peers")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    secret = os.environ.get("ROLLOUT_AGENT_SECRET", "")
    if len(secret) < MIN_SECRET_LENGTH:
        text = f"is empty or shorter than {MIN_SECRET_LENGTH} characters; set it to the value that the fleet worker has"
        return _refuse(f"ROLLOUT_AGENT_SECRET: {text}", EXIT_USAGE)
    try:
        store = ObjectStore(options.store)
    except (ValueError, ImportError) as error:
        return _refuse(f"--store {options.store!r} cannot be opened ({error})", EXIT_USAGE)
    if not options.store:
        return _refuse("--store: is empty; use file:///folder or s3://bucket/prefix", EXIT_USAGE)
    try:
        options.cache.mkdir(parents=True, exist_ok=True)
        listener = listen(options.host, options.port)
    except OSError as error:
        return _refuse(f"cannot use {options.cache} and listen on {options.host}:{options.port}: {error}", EXIT_FAILED)
    cache = options.cache.resolve()
    app = make_app(CheckpointKeeper(store, cache), secret, PeerKeeper(cache / "peer", options.peer_address))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _refuse(text: str, code: int) -> int:
    sys.stderr.write(f"agent: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
