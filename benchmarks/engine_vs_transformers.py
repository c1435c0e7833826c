"""Claim: the embedded engine samples at least 2.5× as many tokens per CPU-second as Hugging Face `generate`.

The same work on both sides, interleaved in one run: SmolLM2-135M-Instruct in its own precision, one thread, 8 prompts
of ~145 tokens × 8 samples × 64 new tokens, temperature 1, no truncation, ends ignored. The engine is its own process
behind HTTP and its CPU time includes the client's; `generate` gets all 64 sequences in one padded batch, its fastest
size.
Also compared: the log-probs the engine reported against transformers' own on the same tokens.
Prints one JSON object. Run: `python benchmarks/engine_vs_transformers.py [--home HOME] [--repeats N]`.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import smollm2

NUM_PROMPTS, GROUP_SIZE, NEW_TOKENS, PROMPT_TOKENS = 8, 8, 64, 145
AIM = 2.5
MAX_MISMATCH = 0.045  # mean |difference of log-probs|; two bfloat16 implementations differ by about .037
START_SECONDS = 120
TOPICS = ["weather", "flights", "currency rates", "recipes", "train times", "stock prices", "distances", "translations"]


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Chat prompts that describe functions, about PROMPT_TOKENS tokens each, none with a long common beginning."""
    prompts = []
    for index, topic in enumerate(TOPICS[:NUM_PROMPTS]):
        functions = "\n".join(
            f"def get_{topic.replace(' ', '_')}_{kind}(place: str, day: int = {index}) -> dict: finds {topic} by {kind}"
            for kind in ("name", "region", "date", "price")
        )
        text = f"Answer with one call.\n{functions}\nWhich {topic} are the best for {index + 3} people in town {index}?"
        chat = [{"role": "system", "content": f"You look up {topic}."}, {"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        prompts.append(list(ids)[: PROMPT_TOKENS + index - NUM_PROMPTS // 2])
    return prompts


class EngineSide:
    """The engine's process and its client."""

    def __init__(self, folder: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "gpu_workers.engines.embedded", "--model", str(folder), "--port", str(port)]
        with log.open("wb") as output:
            self.process = psutil.Popen(command, stdout=output, stderr=output, cwd=Path(__file__).resolve().parents[1])
        self.url, self.log, self.num_calls = f"http://127.0.0.1:{port}", log, 0

    async def run(self, prompts: list[list[int]]) -> tuple[float, list[tuple[list[int], GenerateResult]]]:
        """CPU-seconds of server and client, and the answers. The prefix cache is emptied first."""
        client = SGLangEngine(self.url)
        await self._ready(client)
        await client.flush_cache()
        before = self._cpu_seconds()
        jobs = [(prompt, client.generate(self._request(prompt))) for prompt in prompts for _ in range(GROUP_SIZE)]
        results = await asyncio.gather(*(job for _, job in jobs))
        seconds = self._cpu_seconds() - before
        await client.close()
        return seconds, [(prompt, result) for (prompt, _), result in zip(jobs, results, strict=True)]

    def _request(self, prompt: list[int]) -> GenerateRequest:
        """No end token can be reached through SGLang's client, so the benchmark's engine has none (see main)."""
        self.num_calls += 1
        return GenerateRequest(prompt, Sampling(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=self.num_calls))

    def _cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return time.process_time() + float(times.user + times.system)

    async def _ready(self, client: SGLangEngine) -> None:
        limit = time.monotonic() + START_SECONDS
        while not await client.healthy():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise SystemExit(f"the engine did not start:\n{self.log.read_text()}")
            await asyncio.sleep(0.2)

    def peak_memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@torch.inference_mode()
def run_transformers(model: Any, tokenizer: Any, prompts: list[list[int]]) -> float:
    """CPU-seconds of one padded batch."""
    rows = [{"input_ids": prompt} for prompt in prompts for _ in range(GROUP_SIZE)]
    batch = tokenizer.pad(rows, padding_side="left", return_tensors="pt")
    started = time.process_time()
    output = model.generate(
        **batch,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    assert output.shape[1] == batch["input_ids"].shape[1] + NEW_TOKENS
    return time.process_time() - started


@torch.inference_mode()
def mismatch(model: Any, answers: list[tuple[list[int], GenerateResult]]) -> dict[str, float]:
    """|engine's − transformers'| log-probs of the first sample of every prompt."""
    differences = []
    for prompt, result in answers[::GROUP_SIZE]:
        logits = model(torch.tensor([[*prompt, *result.output_ids]])).logits[0, len(prompt) - 1 : -1].float()
        own = logits.log_softmax(-1).gather(1, torch.tensor(result.output_ids).unsqueeze(1)).squeeze(1)
        differences.append((own - torch.tensor(result.logprobs)).abs())
    every = torch.cat(differences)
    return {"mean": round(float(every.mean()), 4), "max": round(float(every.max()), 3)}


def endless_copy(folder: Path, target: Path) -> Path:
    """The model without an end token, so that both sides generate exactly NEW_TOKENS; weights are linked."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).symlink_to(file)
    (target / "generation_config.json").unlink()
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    return target


def main() -> int:
    """Run both sides in turn and print the comparison; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".ratchet"))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = smollm2.prepare(options.home.resolve())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = make_prompts(tokenizer)
    ours, theirs, answers = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        engine = EngineSide(endless_copy(folder, Path(scratch) / "model"), Path(scratch) / "engine.log")
        try:
            asyncio.run(engine.run([prompt[:8] for prompt in prompts]))  # first-use costs of the kernels
            for _ in range(options.repeats):
                seconds, answers = asyncio.run(engine.run(prompts))
                ours.append(seconds)
                theirs.append(run_transformers(model, tokenizer, prompts))
            memory = engine.peak_memory_bytes()
        finally:
            engine.stop()
    assert all(len(result.output_ids) == NEW_TOKENS for _, result in answers)
    num_tokens = NUM_PROMPTS * GROUP_SIZE * NEW_TOKENS
    ratio = statistics.median(theirs) / statistics.median(ours)
    difference = mismatch(model, answers)
    result = {
        "claim": f"embedded engine against transformers generate: at least {AIM} times the tokens per CPU-second",
        "tokens": num_tokens,
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "dtype": str(model.dtype).removeprefix("torch."),
        "engine_tokens_per_cpu_second": round(num_tokens / statistics.median(ours), 1),
        "transformers_tokens_per_cpu_second": round(num_tokens / statistics.median(theirs), 1),
        "engine_cpu_seconds": [round(value, 2) for value in ours],
        "transformers_cpu_seconds": [round(value, 2) for value in theirs],
        "ratio": round(ratio, 2),
        "ratio_of_pairs": [round(b / a, 2) for a, b in zip(ours, theirs, strict=True)],
        "engine_peak_memory_mib": memory >> 20,
        "logprob_mismatch": difference,
        "holds": ratio >= AIM and difference["mean"] <= MAX_MISMATCH,
    }
    print(json.dumps(result, indent=2))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
