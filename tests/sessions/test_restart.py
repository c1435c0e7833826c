"""The gateway is killed with SIGKILL: what was answered is there again, id by id, and the agent goes on."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sessions.world import OWNER, SECRET, wait_until
from tests.unit.gpu_workers.engines.serving import serving

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
NUM_KILLS = 4


class Gateway:
    """The real process, over a real engine with the tiny model; always at the same port and home."""

    def __init__(self, home: Path, engine_url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RATCHET_HOME": str(home),
            "RATCHET_WORKER_SECRET": SECRET,
            "RATCHET_CONTROL_URL": "http://127.0.0.1:9",  # nobody: sessions need no control plane
            "ROLLOUT_ENGINE_URLS": engine_url,
            "REDIS_URL": "",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "gpu_workers.serving", "--port", str(self.port), "--log-level", "error"]
        self.process = subprocess.Popen(command, env=self._environment, cwd=ROOT)
        wait_until(self._is_up)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the gateway ended"
        try:
            return httpx.get(f"{self.url}/health").is_success
        except httpx.HTTPError:
            return False


@pytest.fixture
def gateway(tiny_model: Path, tmp_path: Path) -> Iterator[Gateway]:
    with serving(tiny_model) as (engine_url, _):
        made = Gateway(tmp_path / "home", engine_url)
        made.start()
        yield made
        made.kill()


class Agent:
    """Talks, and says the same again when its server is gone."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        made = httpx.post(f"{gateway.url}/sessions", json={"max_new_tokens": 8}, headers=OWNER, timeout=PATIENCE).json()
        self.path, self.token = f"{gateway.url}/sessions/{made['id']}", made["token"]
        self.messages: list[dict[str, Any]] = []

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        body = {"model": "m", "messages": self.messages, "stream": False}
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.post(f"{self.path}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        self.messages.append(answer.json()["choices"][0]["message"])

    def trajectory(self, branch: str = "main") -> dict[str, Any]:
        answer = httpx.get(f"{self.path}/trajectory", params={"branch": branch}, headers=OWNER, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def said(self) -> list[str]:
        return [message["content"] for message in self.messages if message["role"] == "assistant"]


@pytest.mark.slow
def test_killed_between_turns(gateway: Gateway) -> None:
    agent, other = Agent(gateway), Agent(gateway)
    agent.ask("one")
    other.ask("else")
    agent.ask("two")
    before = agent.trajectory("all")
    gateway.kill()
    gateway.start()
    assert agent.trajectory("all") == before
    agent.ask("three")
    (branch,) = agent.trajectory("all")["branches"]
    first = before["branches"][0]
    assert branch["ids"][: len(first["ids"])] == first["ids"]
    assert branch["logprobs"][: len(first["ids"])] == first["logprobs"]
    assert sum(branch["mask"]) > sum(first["mask"])
    other.ask("more")
    wrong = httpx.post(f"{agent.path}/v1/chat/completions", json={}, headers={"Authorization": "Bearer x"})
    assert wrong.status_code == 401


@pytest.mark.slow
def test_a_torn_record_is_dropped_and_the_agents_next_turn_is_a_branch(gateway: Gateway, tmp_path: Path) -> None:
    """As after a power cut: the last answer is lost, so it is read as text that the agent wrote."""
    agent = Agent(gateway)
    agent.ask("one")
    kept = agent.trajectory()["branches"][0]
    agent.ask("two")
    gateway.kill()
    (file,) = (tmp_path / "home" / "sessions").glob("*.session")
    file.write_bytes(file.read_bytes()[:-5])
    gateway.start()
    assert agent.trajectory()["branches"][0] == kept
    agent.ask("three")
    branch = agent.trajectory()["branches"][0]
    assert branch["ids"][: len(kept["ids"])] == kept["ids"]
    roles = [turn["role"] for turn in branch["turns"]]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert [bool(turn["finish_reason"]) for turn in branch["turns"][1::2]] == [True, False, True]


@pytest.mark.slow
def test_killed_at_random_while_turns_run(gateway: Gateway) -> None:
    """Whenever it dies: every answer that the agent has is in the main branch with its tokens, once."""
    agent, chance, stop = Agent(gateway), random.Random(5), threading.Event()

    def talk() -> None:
        while not stop.is_set() and len(agent.messages) < 60:
            waiting = len(agent.messages)
            try:
                agent.ask(f"message {waiting}")
            except httpx.HTTPError:
                del agent.messages[waiting:]  # and the same again

    talking = threading.Thread(target=talk)
    talking.start()
    for _ in range(NUM_KILLS):
        enough = len(agent.messages) + chance.randint(2, 6)
        wait_until(lambda enough=enough: len(agent.messages) >= enough or not talking.is_alive())
        gateway.kill()
        gateway.start()
    stop.set()
    talking.join(PATIENCE)
    body = agent.trajectory("all")
    answered = [turn for turn in body["branches"][0]["turns"] if turn["role"] == "assistant"]
    assert all(turn["finish_reason"] for turn in answered)  # none of them became mere text
    texts = [turn["text"] for turn in answered]
    assert texts[: len(agent.said())] == agent.said()
    assert len(texts) - len(agent.said()) in (0, 1)  # one may be stored whose answer was lost
    assert len(agent.said()) >= NUM_KILLS
