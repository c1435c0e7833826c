"""`python -m gpu_workers.serving --port N`: the gateway of this host's settings."""

import argparse
import logging
import socket
import sys

import uvicorn

from gpu_workers.contracts.exporter import serve
from gpu_workers.contracts.seams import RolloutEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.listening import listen
from gpu_workers.serving.app import GatewayOptions, make_app
from gpu_workers.serving.channels import Installer
from gpu_workers.settings import SettingsError, WorkerSettings, load_settings
from gpu_workers.weights.adapter import AdapterTransfer

EXIT_USAGE = 2


def main() -> int:
    """Check the settings, listen, serve until a signal."""
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.serving", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    options = parser.parse_args()
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        gateway = gateway_options(load_settings(), options.port)
    except SettingsError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return EXIT_USAGE
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        sys.stderr.write(f"cannot listen on {options.host}:{options.port}: {error.strerror}; choose another --port\n")
        return 1
    serve()
    config = uvicorn.Config(
        make_app(gateway), log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=5
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def gateway_options(worker: WorkerSettings, port: int) -> GatewayOptions:
    """Options from the environment. Raises SettingsError naming the variable."""
    if not worker.worker_secret:
        raise SettingsError("RATCHET_WORKER_SECRET: is empty; set it to the value that the control plane has")
    urls = worker.require_engines()

    def installer(engines: list[RolloutEngine]) -> Installer:
        transfer = AdapterTransfer(list(zip(urls, engines, strict=True)), worker.store, worker.cache_dir)
        return lambda install: transfer.install(install, [])

    return GatewayOptions(
        control_url=worker.control_url,
        secret=worker.worker_secret,
        redis_url=worker.redis_url,
        models_dir=worker.models_dir,
        connect=lambda: [SGLangEngine(url) for url in urls],
        installer=installer,
        name=f"{socket.gethostname()}:{port}",
        sessions_dir=worker.home / "sessions",
        session_limits=worker.sessions,
    )


if __name__ == "__main__":
    sys.exit(main())
