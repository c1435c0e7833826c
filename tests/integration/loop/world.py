"""The whole machine on the tiny model, and people who talk to it over REST."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from ratchet.env import ROOT
from tests.integration.services.machine import Machine

HEADER = {
    "slug": "digits",
    "title": "Answer in digits",
    "distribution": "Requests to answer with digits: half for an answer that ends in time, half for its digits.",
    "failure_modes": [{"code": "WRONG_ANSWER", "meaning": "fewer than half of the characters are digits"}],
    "verifier": {
        "kind": "program",
        "config": {"pass_score": 0.75},
        "program": (
            "def verify(episode):\n"
            "    text = episode['answer']\n"
            "    if not text:\n"
            "        return {'score': 0.0, 'message': 'no end within the limit'}\n"
            "    share = sum(c.isdigit() for c in text) / len(text)\n"
            "    return {'score': 0.5 + share / 2, 'message': f'{share:.2f} of the answer are digits'}\n"
        ),
    },
}


SIZES = {"train": 24, "dev": 6, "heldout": 24, "regression": 6}


def tasks(sizes: Mapping[str, int] = SIZES) -> list[dict[str, Any]]:
    return [
        {
            "key": f"{split}-{number}",
            "split": split,
            "prompt": f"digits, please: {split} {number}",
            "cluster": f"{split}-{number}",
            "reference": "1234",
            "known_bad": ["abcd"],
        }
        for split, count in sizes.items()
        for number in range(count)
    ]


def spec(**changes: Any) -> dict[str, Any]:
    """A short asynchronous RL run on the digits suite."""
    return {
        "name": "digits",
        "suite": "digits",
        "policy": "prompted",
        "steps": 12,
        "rollout": {"prompts_per_batch": 3, "group_size": 8, "max_staleness": 1, "max_new_tokens": 12},
        "optimiser": {"learning_rate": 3e-3, "warmup_steps": 1},
        "evaluation": {"dev_every": 6, "dev_tasks": 6},
        "limits": {"max_attempts": 4},
    } | changes


logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request would bury what failed


class Person:
    """One user with a token."""

    def __init__(self, machine: Machine, name: str, token: str) -> None:
        self.name = name
        self.token = token
        port = machine.variables["RATCHET_PORT"]
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1/", headers={"Authorization": f"Bearer {token}"}, timeout=30
        )

    def get(self, path: str, **params: Any) -> Any:
        response = self.client.get(path, params=params)
        assert response.is_success, response.text
        return response.json()

    def post(self, path: str, body: dict[str, Any], status: int = 0) -> Any:
        response = self.client.post(path, json=body)
        assert response.status_code == status if status else response.is_success, response.text
        return response.json()

    def wait(self, path: str, done: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            found: dict[str, Any] = self.get(path)
            if done(found):
                return found
            assert time.monotonic() < deadline, f"{path} after {seconds} s: {json.dumps(found)[:2000]}"
            time.sleep(0.3)


def manage(machine: Machine, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        env=machine.environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def people(machine: Machine, base_model: str = "tiny") -> dict[str, Person]:
    """Project demo with its people, each with a token; the base model is registered."""
    manage(machine, "bootstrap")
    manage(machine, "register_base_model", base_model)
    script = (
        "import json; from apps.accounts.models import User; from apps.accounts.services import issue_token; "
        "print(json.dumps({u.username: issue_token(user=u, name='t', by=None).secret for u in User.objects.all()}))"
    )
    tokens = json.loads(manage(machine, "shell", "-v", "0", "-c", script).splitlines()[-1])
    return {name: Person(machine, name, token) for name, token in tokens.items()}


def prepare(
    someone: Person, owner: Person, *, base_model: str = "tiny", rows: list[dict[str, Any]] | None = None
) -> None:
    """Suite ready, prompted policy made and in production."""
    suite = someone.post("suites/", {"project": "demo", "header": HEADER, "tasks": rows or tasks()})
    ready = someone.wait(f"suites/{suite['id']}/", lambda s: s["state"] != "checking")
    assert ready["state"] == "ready", ready
    someone.post("policies/", {"project": "demo", "slug": "prompted", "base_model": base_model})
    owner.post("channels/", {"project": "demo", "name": "production", "policy": "prompted"})
