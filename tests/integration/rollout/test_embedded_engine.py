"""A group on the real embedded engine with real sandboxes: from the Celery message's payload to stored tokens."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpu_workers import jobs
from gpu_workers.contracts.enums import Purpose, VerifierKind
from gpu_workers.contracts.groups import GroupTranscript, decode_group, jsonable
from gpu_workers.contracts.messages import GroupReport, PolicyRef, Report, RolloutJob, Sampling
from gpu_workers.contracts.tasks import Message, TaskBundle, ToolSpec, VerifierSpec
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from gpu_workers.sessions.chat import load_template
from gpu_workers.settings import load_settings

ROOT = Path(jobs.__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tiny.prepare(folder)
    return folder


@pytest.fixture(scope="module")
def engine_url(home: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gpu_workers.engines.embedded", "--model", str(home / "models/tiny")]
    with (home / "engine.log").open("wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process, home / "engine.log")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the engine did not start: {log.read_text()}")


def run(home: Path, url: str, monkeypatch: pytest.MonkeyPatch, task: TaskBundle, *, temperature: float = 1.0):
    """Run the job as a worker would; its report, the transcript's episodes and the tokens."""
    worker = load_settings({"RATCHET_HOME": str(home), "ROLLOUT_ENGINE_URLS": url})
    sent: list[Report] = []
    monkeypatch.setattr(jobs, "settings", lambda: worker)
    monkeypatch.setattr(jobs, "reporter", lambda: type("Kept", (), {"send": sent.append}))
    jobs.load_task.cache_clear()
    job = RolloutJob(
        group_id=f"g{time.time_ns()}",
        attempt=1,
        purpose=Purpose.TRAIN,
        task=worker.store.put(msgspec.json.encode(task)),
        group_size=6,
        policy=PolicyRef(),
        sampling=Sampling(max_new_tokens=24, temperature=temperature, seed=5),
        deadline=time.time() + 60,
    )
    jobs.rollout_group(jsonable(job))
    (report,) = sent
    body = msgspec.convert(report.body, GroupReport)
    assert body.error == ""
    episodes = GroupTranscript.decode(worker.store.get(body.transcript)).episodes
    return body, episodes, decode_group(worker.store.get(body.uri))


def exact(expected: str, **fields: object) -> TaskBundle:
    prompt = [Message(role="user", content="say something")]
    return TaskBundle(
        key="t", prompt=prompt, verifier=VerifierSpec(kind=VerifierKind.EXACT, expected=expected), **fields
    )


def reference_logprobs(model: Path, tokens: np.ndarray) -> np.ndarray:
    """log p(token | before) under an independent implementation of the model."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = network(torch.tensor([tokens.tolist()], dtype=torch.long)).logits[0, :-1]
    chosen = torch.tensor(tokens[1:].tolist(), dtype=torch.long)[:, None]
    return torch.log_softmax(logits, -1).gather(1, chosen)[:, 0].numpy()


def test_behaviour_logprobs_are_those_of_the_model(
    home: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, episodes, tokens = run(home, engine_url, monkeypatch, exact("x"))
    assert len({tuple(t.tokens) for t in tokens}) > 1, "samples of a group differ"
    for episode, arrays in zip(episodes, tokens, strict=True):
        assert episode.num_sampled_tokens == int(arrays.mask.sum()) > 0
        sampled = np.flatnonzero(arrays.mask)
        truth = reference_logprobs(home / "models/tiny", arrays.tokens)[sampled - 1]
        assert np.abs(truth - arrays.logprobs[sampled]).max() < 2e-3
        assert episode.engine_seconds > 0
    assert all(record.turns == [] for record in body.episodes)


def test_greedy_samples_agree(home: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, tokens = run(home, engine_url, monkeypatch, exact("x"), temperature=0.0)
    assert len({tuple(t.tokens) for t in tokens}) == 1


def test_many_turns_in_real_sandboxes_stay_exact(home: Path, engine_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained model calls nothing, so its text is replaced on the way: the tokens sampled afterwards are real."""
    template = load_template(home / "models/tiny")
    generate = SGLangEngine.generate

    async def scripted(engine: SGLangEngine, request):
        result = await generate(engine, request)
        text = "".join(template.token_texts(request.input_ids))
        if text.count("<|im_start|>tool") < 2:
            ids = [*template.encode("add(by=2)"), template.eos_id]
            return replace(result, output_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop")
        return result

    monkeypatch.setattr(SGLangEngine, "generate", scripted)
    source = (
        "from pathlib import Path\n"
        "def call(arguments):\n"
        "    file = Path('total')\n"
        "    total = int(file.read_text() if file.exists() else 0) + arguments['by']\n"
        "    file.write_text(str(total))\n"
        "    return str(total)\n"
    )
    schema = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
    tool = ToolSpec(name="add", parameters=schema, source=source)
    _, episodes, tokens = run(home, engine_url, monkeypatch, exact("x", tools=[tool], max_turns=4))
    for episode, arrays in zip(episodes, tokens, strict=True):
        results = [turn.tool_call.result for turn in episode.turns if turn.tool_call is not None]
        assert results == ["2", "4"], "each episode has a world of its own that lasts over its turns"
        assert "bubblewrap" in episode.sandbox.isolation
        assert episode.sandbox.log.count("run() -> exit 0") == 2
        last = next(turn for turn in reversed(episode.turns) if turn.role == "assistant")
        span = slice(last.token_start, last.token_stop)
        truth = reference_logprobs(home / "models/tiny", arrays.tokens)[last.token_start - 1 : last.token_stop - 1]
        assert np.abs(truth - arrays.logprobs[span]).max() < 2e-3
