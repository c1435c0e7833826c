"""A real SGLang server on the CPU, and sglang-router in front of it, as processes of the virtual environment that
`make test-sglang` installs."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from gpu_workers.models import smollm2
from tests.integration.services.machine import free_port

FOLDER = os.environ.get("RATCHET_SGLANG_DIR", "")  # the virtual environment; empty: these tests are not asked for
START_SECONDS = 600.0  # 36 s on a quiet machine
HOME = os.environ.get("RATCHET_SGLANG_HOME", "")  # data folder with the prepared SmolLM2; empty: beside FOLDER
RUNNING = os.environ.get("RATCHET_SGLANG_URL", "")  # a server started with the options below, for work on the tests
KEEP_LOGS = bool(os.environ.get("RATCHET_SGLANG_KEEP_LOGS"))
MAX_LORAS = 4  # in one batch
MAX_LOADED_LORAS = 6
MAX_TOTAL_TOKENS = 16384
MAX_QUEUED = 32  # requests; more are refused with 503
_LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_ENVIRONMENT = {
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",  # with two threads it is several times slower
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
}


# "1, 2, 3, 4,": greedy, the model counts on far beyond what any test waits for.
ENDLESS_PROMPT = (33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28)


def model() -> Path:
    """SmolLM2-135M, prepared on first use."""
    return smollm2.prepare(Path(HOME or FOLDER))


class ServerError(RuntimeError):
    """A server that ended or never answered; holds the end of its log."""


@contextlib.contextmanager
def sglang(model: Path, *options: str, dtype: str = "float32") -> Iterator[str]:
    """URL of a server of `model` that answers: RATCHET_SGLANG_URL where that names one, else one of its own."""
    if RUNNING and not options and dtype == "float32":
        yield RUNNING
        return
    port = free_port()
    command = [
        "-m", "sglang.launch_server", "--model-path", str(model), "--served-model-name", "base", "--dtype", dtype,
        "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--attention-backend", "torch_native",
        "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
        "--max-total-tokens", str(MAX_TOTAL_TOKENS), "--enable-metrics", "--skip-server-warmup", "--sleep-on-idle",
        "--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", *_LORA_TARGETS,
        "--lora-backend", "torch_native", "--max-loras-per-batch", str(MAX_LORAS),
        "--max-loaded-loras", str(MAX_LOADED_LORAS), "--max-queued-requests", str(MAX_QUEUED), *options,
    ]  # fmt: skip
    with _process(command, _ENVIRONMENT, f"http://127.0.0.1:{port}", "/model_info") as url:
        yield url


@contextlib.contextmanager
def router(*engines: str) -> Iterator[str]:
    """URL of sglang-router that knows these engines as healthy."""
    port, metrics = free_port(), free_port()
    command = [
        "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-port", str(metrics), "--policy", "cache_aware", "--disable-circuit-breaker",
        "--worker-urls", *engines,
    ]  # fmt: skip
    with _process(command, {}, f"http://127.0.0.1:{port}", "/health") as url:
        yield url


@contextlib.contextmanager
def _process(arguments: list[str], variables: Mapping[str, str], url: str, path: str) -> Iterator[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with tempfile.NamedTemporaryFile("w+", prefix="sglang-", suffix=".log", delete=not KEEP_LOGS) as log:
        process = subprocess.Popen(
            [str(Path(FOLDER) / "bin" / "python"), *arguments],
            env=kept | dict(variables), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            _wait(process, url + path, log)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its schedulers too; nothing of theirs is kept
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: "tempfile._TemporaryFileWrapper[str]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=10).is_success:
                return
        time.sleep(0.5)
    log.seek(0)
    raise ServerError(f"{url} does not answer (exit status {process.poll()}):\n{log.read()[-6000:]}")
