"""The command line: what cannot work ends in one line that says what to do."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from gpu_workers.engines import embedded

ROOT = Path(embedded.__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "gpu_workers.engines.embedded"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "/nowhere"], "cannot read /nowhere/config.json"),
        (["--model", "MODEL", "--max-total-tokens", "100"], "--max-total-tokens 100 leaves"),
        (["--model", "MODEL", "--max-running", "0"], "--max-running is 0"),
    ],
)
def test_a_wrong_option_is_refused(tiny_model: Path, options: list[str], message: str) -> None:
    command = [*COMMAND, "--port", "0", *(str(tiny_model) if option == "MODEL" else option for option in options)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_named(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*COMMAND, "--model", str(tiny_model), "--port", port]
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_it_serves_until_terminated(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*COMMAND, "--model", str(tiny_model), "--port", str(port)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 60
    while time.monotonic() < limit and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as response:
                assert response.status == 200
            break
        except OSError:
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert "engine ready" in errors
    assert "Traceback" not in errors
