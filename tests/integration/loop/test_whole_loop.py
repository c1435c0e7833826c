"""From a suite to a promoted policy and back, on every real process, with the tiny model."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.loop.world import Person, spec
from tests.integration.services.machine import Machine

pytestmark = pytest.mark.slow
FINAL = ("succeeded", "failed", "halted", "cancelled")


def _ask(machine: Machine, token: str) -> dict[str, Any]:
    response = httpx.post(
        f"http://127.0.0.1:{machine.variables['RATCHET_GATEWAY_PORT']}/v1/chat/completions",
        headers={"Authorization": f"Bearer {token}"},
        json={"model": "demo/production", "messages": [{"role": "user", "content": "digits"}], "max_tokens": 8},
        timeout=30,
    )
    assert response.is_success, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_run_learns_is_judged_promoted_served_and_rolled_back(machine: Machine, people: dict[str, Person]) -> None:
    engineer, manager, admin = people["engineer"], people["manager"], people["admin"]
    submitted = engineer.post("runs/", {"project": "demo", "spec": spec()}, 202)
    run = engineer.wait(f"runs/{submitted['id']}/", lambda r: r["state"] in FINAL, 120)
    assert run["state"] == "succeeded", run

    ledger = engineer.get(f"runs/{run['id']}/ledger/")
    assert ledger["adds_up"], ledger
    checkpoints = engineer.get(f"runs/{run['id']}/checkpoints/")["results"]
    last = max(checkpoints, key=lambda c: c["version"])
    assert last["version"] == 12 and len(set(last["batch_ids"])) == 12
    episodes = _episodes(engineer, run["id"])
    first, late = _mean_reward(episodes, {0}), _mean_reward(episodes, {10, 11})
    assert late > 1.5 * first, f"mean reward went from {first:.2f} to {late:.2f}"

    gate = engineer.post(
        "gates/", {"project": "demo", "candidate": run["result"], "suite": "digits", "run": run["id"]}, 202
    )
    judged = manager.wait(f"gates/{gate['id']}/", lambda g: g["state"] != "evaluating", 60)
    assert judged["state"] == "waiting" and judged["report"]["arms"][1]["n"] == 24
    refused = engineer.client.post(f"gates/{gate['id']}/decision/", json={"kind": "approve"})
    assert refused.status_code == 403
    _promote(judged, manager, admin)
    channel = manager.wait("channels/demo/production/", lambda c: c["complete"] is True)
    assert channel["policy"]["slug"] == run["result"]
    assert _ask(machine, engineer.token)["choices"][0]["message"]["role"] == "assistant"

    manager.post("channels/demo/production/rollback/", {"reason": "the test wants the prompted policy back"})
    channel = manager.wait("channels/demo/production/", lambda c: c["complete"] is True)
    assert channel["policy"]["slug"] == "prompted"
    assert _ask(machine, engineer.token)["choices"][0]["message"]["role"] == "assistant"
    assert manager.get("audit/verify/", project="demo")["ok"] is True


def _promote(gate: dict[str, Any], manager: Person, admin: Person) -> None:
    """Approve what passed; what did not goes the way of an override with a second approver."""
    seen = {"evidence_digest": gate["evidence_digest"]}
    path = f"gates/{gate['id']}"
    if gate["verdict"] == "pass":
        manager.post(f"{path}/decision/", {"kind": "approve", "reason": "better on held-out tasks", **seen})
        return
    manager.post(f"{path}/decision/", {"kind": "override", "reason": "needed for the test of serving", **seen})
    admin.post(f"{path}/confirm/", seen)


def _episodes(someone: Person, run_id: str) -> list[dict[str, Any]]:
    lines = someone.client.get(f"runs/{run_id}/episodes.jsonl").text.splitlines()
    return [json.loads(line) for line in lines]


def _mean_reward(episodes: list[dict[str, Any]], versions: set[int]) -> float:
    rewards = [e["reward"] for e in episodes if e["min_version"] in versions and e["reward"] is not None]
    return sum(rewards) / len(rewards)
