"""Command line of the embedded engine."""

import argparse
import logging
import os
import sys
from pathlib import Path

# One thread a process is fastest where cores are shared; must be set before torch loads its OpenMP runtime.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A request alone pays for all rows of a product, a full batch for each product's pass over the weights.
DETERMINISTIC_ROWS = 8


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Options; names follow SGLang's launcher where it has them."""
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.engines.embedded", description=__doc__)
    parser.add_argument(
        "--model", "--model-path", dest="model", type=Path, required=True, help="folder of a prepared model"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument(
        "--deterministic",
        "--enable-deterministic-inference",
        action="store_true",
        help="float32 on one thread, fixed shapes: a request's tokens and log-probs do not depend on its batch",
    )
    parser.add_argument("--deterministic-rows", type=int, default=DETERMINISTIC_ROWS, help="rows of every product then")
    parser.add_argument("--max-running", type=int, default=64, help="requests decoded together")
    parser.add_argument(
        "--max-total-tokens", type=int, default=0, help="tokens of cached keys and values; 0: about 640 MiB"
    )
    parser.add_argument("--prefill-tokens-per-step", type=int, default=512, help="bounds the gap between two tokens")
    parser.add_argument("--max-loras", type=int, default=12)
    parser.add_argument("--max-lora-rank", type=int, default=64)
    parser.add_argument("--served-model-name", default="base")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser.parse_args(argv)


def main() -> int:
    """Load the model, listen, serve until a signal."""
    options = parse_arguments()
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from gpu_workers.engines.embedded.config import EngineConfigError
    from gpu_workers.engines.embedded.launch import build_engine, serve
    from gpu_workers.listening import listen

    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        sys.stderr.write(f"cannot listen on {options.host}:{options.port}: {error.strerror}; choose another --port\n")
        return 1
    try:
        engine = build_engine(options)
    except EngineConfigError as error:
        sys.stderr.write(f"cannot start the engine: {error}\n")
        return 1
    serve(engine, listener, options.log_level)
    return 1 if engine.failure else 0


if __name__ == "__main__":
    sys.exit(main())
