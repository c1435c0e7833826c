"""The embedded engine as a process of its own, which a test can stop, continue and kill."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.integration.services.machine import free_port

START_SECONDS = 240.0


@dataclass
class EngineProcess:
    url: str
    process: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.contextmanager
def engine_process(model: Path, *options: str) -> Iterator[EngineProcess]:
    """One that answers."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        sys.executable,
        "-m",
        "gpu_workers.engines.embedded",
        "--model",
        str(model),
        "--port",
        str(port),
        *options,
    ]
    process = subprocess.Popen(
        [*command, *options], env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/model_info", timeout=5).is_success:
                    break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"the engine did not start (exit status {process.poll()})")
        yield EngineProcess(url, process)
    finally:
        process.kill()
        process.wait()
