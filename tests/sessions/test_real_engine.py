"""Sessions over the real embedded engine: what the trajectory calls the behaviour log-probs are the model's own."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.serving.session_server import SessionServer
from gpu_workers.sessions.limits import SessionLimits
from tests.sessions.world import OWNER, SECRET, make_app
from tests.unit.gpu_workers.engines.serving import serving

TOLERANCE = 2e-3  # of the engine's log-probs against the reference implementation, float32


def reference_logprobs(model: Path, ids: list[int]) -> np.ndarray:
    """log p(token | before) of tokens 1, 2, … under an independent implementation of the model."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = network(torch.tensor([ids])).logits[0, :-1]
    chosen = torch.tensor(ids[1:])[:, None]
    return torch.log_softmax(logits, -1).gather(1, chosen)[:, 0].numpy()


@pytest.mark.filterwarnings("ignore")  # the reference implementation warns as it likes
async def test_every_branch_has_the_log_probs_of_the_model(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tiny_model) as (url, _):
        engine = SGLangEngine(url)
        server = SessionServer(tmp_path / "sessions", [engine], tiny_model.parent, SECRET, SessionLimits())
        transport = httpx.ASGITransport(make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://s", timeout=120) as client:
            spec = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}
            made = (await client.post("/sessions", json=spec, headers=OWNER)).json()

            async def ask(messages: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
                headers = {"Authorization": f"Bearer {made['token']}"}
                body = {"model": "m", "messages": messages, **options}
                answer = await client.post(f"{made['base_path']}/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                if options.get("stream"):
                    return []
                return [choice["message"] for choice in answer.json()["choices"]]

            messages: list[dict[str, Any]] = [{"role": "user", "content": "say something"}]
            choices = await ask(messages, n=3)
            messages += [choices[1], {"role": "user", "content": "more"}]
            messages += [*(await ask(messages)), {"role": "user", "content": "and more"}]
            await ask(messages, stream=True)
            await ask([messages[0], {"role": "assistant", "content": "edited"}, *messages[2:]])
            path = f"/sessions/{made['id']}/trajectory"
            branches = (await client.get(path, params={"branch": "all"}, headers=OWNER)).json()["branches"]
        server.close()
        await engine.close()
    assert len(branches) == 4
    assert len({tuple(branch["ids"]) for branch in branches}) == 4
    for branch in branches:
        sampled = np.flatnonzero(branch["mask"])
        truth = reference_logprobs(tiny_model, branch["ids"])[sampled - 1]
        assert np.abs(truth - np.array(branch["logprobs"])[sampled]).max() < TOLERANCE
