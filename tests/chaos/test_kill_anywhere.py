"""kill -9 at every named place and at random: synchronous runs end with the bytes of one never killed, and in
asynchronous ones the ledger, the batches and the checkpoints agree to the last group."""

import json
import os
import random
import signal
import time
from typing import Any

import psutil
import psycopg
import pytest

from tests.chaos.barriers import PLACES, Barriers
from tests.integration.loop.world import Person, spec
from tests.integration.services.machine import Machine

FINAL = ("succeeded", "failed", "halted", "cancelled")
STEPS, LONG = 40, 100  # the long run has room for both kinds of kills
GROUPS = 2
RANDOM_KILLS = 20
VICTIMS = {  # words of a command -> how often it is chosen
    "gpu_workers.trainer": 10, "-n rollout@": 4, "-n ingest@": 2, "-n control@": 2, "-n train@": 1, "-n heartbeat@": 1,
}  # fmt: skip


def submit(engineer: Person, name: str, bound: int, steps: int = STEPS) -> str:
    # What the engine says of log-probs is made up, so the rules about the mismatch do not apply.
    health = {"max_mismatch": 0, "min_effective_sample_size": 0, "min_entropy": 0}
    rollout = {
        "prompts_per_batch": GROUPS, "group_size": 4, "max_staleness": bound, "max_new_tokens": 12,
        "group_timeout_seconds": 20, "max_attempts": 10,
    }  # fmt: skip
    body = spec(
        name=name, steps=steps, seed=5, rollout=rollout, evaluation={"dev_tasks": 0}, health=health,
        limits={"max_attempts": 50, "max_error_share": 1.0},
    )  # fmt: skip
    return str(engineer.post("runs/", {"project": "demo", "spec": body}, 202)["id"])


def finish(engineer: Person, run_id: str, seconds: float = 600) -> dict[str, Any]:
    run = patiently(engineer, run_id, lambda r: r["state"] in FINAL, seconds)
    assert run["state"] == "succeeded", run
    return run


def patiently(engineer: Person, run_id: str, done: Any, seconds: float) -> dict[str, Any]:
    return engineer.wait(f"runs/{run_id}/", done, seconds)


def processes(machine: Machine, words: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if words in " ".join(process.info["cmdline"] or [])
        and (process.info["environ"] or {}).get("RATCHET_HOME") == str(machine.root)
    ]


def weights(engineer: Person, run_id: str) -> dict[int, str]:
    page = engineer.get(f"runs/{run_id}/checkpoints/", page_size=200)
    assert page["next"] is None
    return {c["version"]: c["sha256"] for c in page["results"]}


def trained(machine: Machine, run_id: str) -> list[tuple[Any, ...]]:
    """(index of the batch, task, sampling seed, age) of every group that was trained on, in order."""
    with machine.connect() as database:
        return database.execute(
            "SELECT b.index, t.key, g.sampling->>'seed', g.age "
            "FROM runs_group g JOIN runs_batch b ON b.id = g.batch_id JOIN tasks_task t ON t.id = g.task_id "
            "WHERE g.run_id = %s AND g.outcome = 'trained' ORDER BY 1, g.number",
            [run_id],
        ).fetchall()


def check_books(machine: Machine, engineer: Person, run_id: str, bound: int, steps: int = STEPS) -> None:
    """Ledger, batches, checkpoints in the store and rows say the same; nothing is lost and nothing doubled."""
    ledger = engineer.get(f"runs/{run_id}/ledger/")
    assert ledger["adds_up"], ledger
    assert ledger["num_open"] == 0
    with machine.connect() as database:
        batches = [str(row[0]) for row in database.execute(
            "SELECT id FROM runs_batch WHERE run_id = %s AND state = 'trained' ORDER BY index", [run_id])]  # fmt: skip
        folders = database.execute(
            "SELECT version, uri, batch_ids FROM runs_checkpoint WHERE run_id = %s ORDER BY version", [run_id]
        ).fetchall()
        members = _members(database, run_id)
        trained = _count(database, "SELECT count(*) FROM runs_group WHERE run_id = %s AND outcome = 'trained'", run_id)
        old = _count(database, f"SELECT count(*) FROM runs_group WHERE run_id = %s AND age > {bound}", run_id)
        twice = _count(database, _DOUBLED, run_id)
    assert len(batches) == steps and trained == steps * GROUPS
    assert old == twice == 0
    assert [version for version, *_ in folders] == list(range(1, steps + 1))
    num_states = 0
    for version, uri, batch_ids in folders:
        assert batch_ids == batches[:version]
        assert (machine.root / "objects" / uri / "manifest.json").is_file() or version < steps, uri
        state = machine.root / "objects" / uri / "state" / "trainer.json"
        if state.is_file():  # of old versions only what engines load is kept
            said = json.loads(state.read_bytes())
            assert said["batch_ids"] == batches[:version]
            assert [sorted(ids) for ids in said["group_ids"]] == [members[batch] for batch in batches[:version]]
            num_states += 1
    assert num_states and state.is_file(), "the last version can be resumed from"


def _members(database: "psycopg.Connection[Any]", run_id: str) -> dict[str, list[str]]:
    """Batch -> ids of its groups, sorted."""
    members: dict[str, list[str]] = {}
    sql = "SELECT batch_id, id FROM runs_group WHERE run_id = %s AND batch_id IS NOT NULL"
    for batch, group in database.execute(sql, [run_id]):
        members.setdefault(str(batch), []).append(str(group))
    return {batch: sorted(groups) for batch, groups in members.items()}


_DOUBLED = (
    "SELECT count(*) FROM (SELECT e.group_id FROM runs_episode e JOIN runs_group g ON g.id = e.group_id "
    "WHERE g.run_id = %s GROUP BY 1, e.index HAVING count(*) > 1) twice"
)


def _count(database: "psycopg.Connection[Any]", sql: str, run_id: str) -> int:
    row = database.execute(sql, [run_id]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture(scope="module")
def untouched(machine: Machine, engineer: Person) -> tuple[dict[int, str], list[tuple[Any, ...]]]:
    """Weights and batches of a synchronous run that nothing happened to."""
    run_id = submit(engineer, "untouched", bound=0)
    run = finish(engineer, run_id)
    assert len(run["attempts"]) == 1
    check_books(machine, engineer, run_id, bound=0)
    return weights(engineer, run_id), trained(machine, run_id)


def test_a_run_killed_at_every_named_place_ends_with_the_same_bytes(
    machine: Machine, engineer: Person, barriers: Barriers, untouched: tuple[dict[int, str], list[tuple[Any, ...]]]
) -> None:
    run_id = submit(engineer, "named places", bound=0)
    assert kill_at_places(engineer, run_id, barriers) == list(PLACES)
    run = finish(engineer, run_id)
    assert len(run["attempts"]) >= 5  # step, checkpoint, publish and report each cost the trainer its life
    check_books(machine, engineer, run_id, bound=0)
    assert (weights(engineer, run_id), trained(machine, run_id)) == untouched


def kill_at_places(engineer: Person, run_id: str, barriers: Barriers) -> list[str]:
    """Kill a process at every named place, each after the run got over the one before; the places where one died."""
    patiently(engineer, run_id, lambda r: r["version"] >= 1, 120)
    killed = []
    for place in PLACES:
        barriers.arm(place)
        pid = barriers.wait(place)
        before = engineer.get(f"runs/{run_id}/")
        assert before["state"] not in FINAL, before
        os.kill(pid, signal.SIGKILL)
        killed.append(place)
        patiently(engineer, run_id, lambda r, v=before["version"]: r["version"] > v or r["state"] in FINAL, 240)
    return killed


def kill_at_random(machine: Machine, engineer: Person, run_id: str, chance: random.Random, count: int) -> list[str]:
    """Kill processes of the machine at random moments while the run is under way."""
    killed: list[str] = []
    words, shares = list(VICTIMS), list(VICTIMS.values())
    while len(killed) < count:
        time.sleep(chance.uniform(0.2, 3.0))
        run = engineer.get(f"runs/{run_id}/")
        if run["state"] in FINAL:
            break
        victim = chance.choices(words, shares)[0]
        for pid in processes(machine, victim):
            os.kill(pid, signal.SIGKILL)
            killed.append(f"{victim} at version {run['version']}")
            break
    return killed


def test_a_synchronous_run_killed_at_random_ends_with_the_same_bytes(
    machine: Machine, engineer: Person, untouched: tuple[dict[int, str], list[tuple[Any, ...]]]
) -> None:
    run_id = submit(engineer, "random", bound=0)
    killed = kill_at_random(machine, engineer, run_id, random.Random(11), RANDOM_KILLS)
    finish(engineer, run_id, 1200)
    assert len(killed) >= RANDOM_KILLS, killed
    check_books(machine, engineer, run_id, bound=0)
    assert (weights(engineer, run_id), trained(machine, run_id)) == untouched, killed


def test_an_asynchronous_run_killed_everywhere_loses_and_doubles_nothing(
    machine: Machine, engineer: Person, barriers: Barriers
) -> None:
    run_id = submit(engineer, "asynchronous", bound=2, steps=LONG)
    assert kill_at_places(engineer, run_id, barriers) == list(PLACES)
    killed = kill_at_random(machine, engineer, run_id, random.Random(12), RANDOM_KILLS)
    finish(engineer, run_id, 1200)
    assert len(killed) >= RANDOM_KILLS, killed
    check_books(machine, engineer, run_id, bound=2, steps=LONG)
