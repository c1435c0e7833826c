"""Engines behind SGLang's HTTP API as sides of a benchmark: the embedded one, and a real SGLang of its own venv."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 600
NEW_TOKENS, PROMPT_TOKENS, GROUP_SIZE = 64, 145, 8
TOPICS = ["weather", "flights", "currency rates", "recipes", "train times", "stock prices", "distances", "translations"]


@dataclass
class Spent:
    """One batch: CPU-seconds of client and server, wall seconds, and the answers as (prompt, ids, log-probs)."""

    cpu_seconds: float
    wall_seconds: float
    answers: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Chat prompts that describe functions, about PROMPT_TOKENS tokens each, none with a long common beginning."""
    prompts = []
    for index, topic in enumerate(TOPICS):
        functions = "\n".join(
            f"def get_{topic.replace(' ', '_')}_{kind}(place: str, day: int = {index}) -> dict: finds {topic} by {kind}"
            for kind in ("name", "region", "date", "price")
        )
        text = f"Answer with one call.\n{functions}\nWhich {topic} are the best for {index + 3} people in town {index}?"
        chat = [{"role": "system", "content": f"You look up {topic}."}, {"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        prompts.append(list(ids)[: PROMPT_TOKENS + index - len(TOPICS) // 2])
    return prompts


def batch_of(prompts: list[list[int]], size: int) -> list[list[int]]:
    """Groups of up to GROUP_SIZE samples of one prompt, as a trainer asks for them."""
    samples = min(size, GROUP_SIZE)
    return [prompt for prompt in prompts[: size // samples] for _ in range(samples)]


class HttpSide:
    """A server process and its client."""

    def __init__(self, command: list[str], port: int, log: Path, environment: dict[str, str] | None = None) -> None:
        self.url, self.log, self.num_calls = f"http://127.0.0.1:{port}", log, 0
        with log.open("wb") as output:
            self.process = psutil.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, env=environment, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers; raises SystemExit with its log."""
        limit = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"{self.url}/model_info", timeout=10).is_success:
                    return
            except httpx.HTTPError:
                pass
            if self.process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"{self.process.args[:4]} did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.3)

    def run(self, batch: list[list[int]], new_tokens: int = NEW_TOKENS) -> Spent:
        """All prompts at once; the prefix cache is emptied first, ends are ignored."""
        httpx.post(f"{self.url}/flush_cache", timeout=60)
        before, started = self.cpu_seconds(), time.perf_counter()
        answers = asyncio.run(self._ask(batch, new_tokens))
        return Spent(self.cpu_seconds() - before, time.perf_counter() - started, answers)

    async def _ask(self, batch: list[list[int]], new_tokens: int) -> list[tuple[list[int], list[int], list[float]]]:
        async with httpx.AsyncClient(base_url=self.url, timeout=1200) as client:
            return await asyncio.gather(*(self._one(client, prompt, new_tokens) for prompt in batch))

    async def _one(
        self, client: httpx.AsyncClient, prompt: list[int], new_tokens: int
    ) -> tuple[list[int], list[int], list[float]]:
        self.num_calls += 1
        sampling = {"max_new_tokens": new_tokens, "temperature": 1.0, "sampling_seed": self.num_calls}
        body = {"input_ids": prompt, "sampling_params": sampling | {"ignore_eos": True}, "return_logprob": True}
        answer = (await client.post("/generate", json=body)).raise_for_status().json()
        logprobs = [row[0] for row in answer["meta_info"]["output_token_logprobs"]]
        assert len(answer["output_ids"]) == new_tokens
        return prompt, answer["output_ids"], logprobs

    def cpu_seconds(self) -> float:
        """Of this process and of the server's, its children included."""
        every = [self.process, *self.process.children(recursive=True)]
        times = [process.cpu_times() for process in every]
        return time.process_time() + sum(float(t.user + t.system) for t in times)

    def peak_memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def stop(self) -> None:
        for child in self.process.children(recursive=True):
            child.kill()
        self.process.terminate()
        try:
            self.process.wait(20)
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            self.process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def embedded_side(model: Path, log: Path, *options: str) -> HttpSide:
    port = free_port()
    command = [sys.executable, "-m", "gpu_workers.engines.embedded", "--model", str(model), "--port", str(port)]
    return HttpSide([*command, *options], port, log)


def sglang_side(folder: Path, model: Path, dtype: str, log: Path) -> HttpSide:
    """SGLang as `make test-sglang` starts it, without adapters."""
    port = free_port()
    command = [
        str(folder / "bin" / "python"), "-m", "sglang.launch_server", "--model-path", str(model), "--dtype", dtype,
        "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--attention-backend", "torch_native",
        "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
        "--max-total-tokens", "32768", "--skip-server-warmup", "--sleep-on-idle",
    ]  # fmt: skip
    variables = {
        "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return HttpSide(command, port, log, kept | variables)
