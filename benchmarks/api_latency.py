"""Claim: lists and details answer with p99 < 150 ms at 20 requests a second, with 10,000 runs and 5,000,000 episodes.

The rows are made in the database (625,000 groups of 8 episodes in 10,000 runs of ten projects, one run in five on a
project that the caller may not see), then one web process is asked over HTTP with a token, at fixed moments whatever
the answers take: the time counts from when a request was due. Prints one JSON object; with `--plans FILE` also the plan
of the slowest statement of each endpoint, as EXPLAIN (ANALYZE, BUFFERS) gives it.
Run: `python benchmarks/api_latency.py [--runs N] [--seconds N] [--rate N] [--plans FILE]`.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _plane import conditions, cpu_seconds, plane

AIM_MS = 150.0
GROUPS_A_RUN, GROUP_SIZE = 62.5, 8
PROJECTS = 10

FILL = """
DO $$ DECLARE c record; BEGIN  -- columns that the rows below do not name get their type's zero
    FOR c IN SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'
        AND table_name IN ('runs_run', 'runs_group', 'runs_episode', 'runs_runevent')
        AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' LOOP
        EXECUTE format('ALTER TABLE %%I ALTER %%I SET DEFAULT %%L', c.table_name, c.column_name, CASE c.data_type
            WHEN 'boolean' THEN 'false' WHEN 'jsonb' THEN '{}' WHEN 'character varying' THEN '' WHEN 'text' THEN ''
            WHEN 'double precision' THEN '0' WHEN 'integer' THEN '0' WHEN 'smallint' THEN '0' WHEN 'bigint' THEN '0'
        END);
    END LOOP;
END $$;
SET session_replication_role = replica;  -- rows are made consistent; checking each reference would take an hour
CREATE TEMP TABLE parts AS SELECT
    ARRAY(SELECT id FROM accounts_project ORDER BY slug) AS projects,
    ARRAY(SELECT id FROM tasks_task ORDER BY id) AS tasks;
INSERT INTO runs_run (id, project_id, number, name, spec, spec_hash, suite_id, policy_id, state, status_code,
    status_message, pause_requested, dataset, version, step, confirmed_version, total_steps, next_task,
    train_cpu_seconds, created_at, started_at, finished_at)
SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
    projects[1 + n %% array_length(projects, 1)], n + 10,
    'run ' || n, r.spec, r.spec_hash, r.suite_id, r.policy_id,
    (ARRAY['succeeded','failed','halted','cancelled'])[1 + n %% 4], '', '', false, '', 4, 4, 4, 4, 8, 100,
    now() - make_interval(mins => %(runs)s - n), now() - make_interval(mins => %(runs)s - n), now()
FROM generate_series(1, %(runs)s) n, parts, (SELECT * FROM runs_run ORDER BY id LIMIT 1) r;
INSERT INTO runs_group (id, project_id, run_id, run_attempt, number, task_id, purpose, state, outcome, outcome_reason,
    boundary, size, policy_adapter, policy_version, num_shots, sampling, dispatch, timeout_seconds, requeue_number, uri,
    transcript, reward_mean, reward_std, num_scored, duration_seconds, created_at, dispatched_at, started_at,
    finished_at, min_version, max_version)
SELECT ('01910000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, r.project_id, r.id, 1, n,
    tasks[1 + n %% array_length(tasks, 1)],
    'train', 'closed', (ARRAY['zero_variance','stale','rejected'])[1 + n %% 3], '', '', 8, '', n %% 5, 0, '{}', 1,
    300, 0,
    'objects/00/' || n, %(transcript)s, .5, .25, 8, 3.5, r.created_at, r.created_at, r.created_at, r.created_at, 0, 1
FROM generate_series(1, %(groups)s) n, parts,
    LATERAL (SELECT * FROM runs_run
        WHERE id = ('01900000-0000-7000-8000-' || lpad(to_hex(1 + n %% %(runs)s), 12, '0'))::uuid) r;
INSERT INTO runs_episode (id, group_id, index, seed, verdict, success, reward, reason_code, message, evidence, boundary,
    stop_reason, answer, tamper, flags, num_turns, num_tool_calls, num_invalid_calls, num_prompt_tokens,
    num_sampled_tokens, num_total_tokens, min_version, max_version, mean_logprob, engine_seconds, queue_seconds,
    tool_seconds, verifier_seconds, total_seconds, isolation, limits_hit, verifier_hash, audit_verdict,
    audit_reason_code, audit_message, audit_hash, created_at)
SELECT ('01920000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
    ('01910000-0000-7000-8000-' || lpad(to_hex(1 + n / 8), 12, '0'))::uuid, n %% 8, n,
    CASE WHEN n %% 2 = 0 THEN 'pass' ELSE 'fail' END, n %% 2 = 0, (n %% 2)::float,
    CASE WHEN n %% 2 = 0 THEN 'OK' ELSE 'WRONG_ANSWER' END, 'the answer differs in one place', '{"expected": "42"}', '',
    'answered', 'the answer is ' || n, n %% 997 = 0, '[]', 2, 3, 0, 200, 60, 320, 0, 1, -.5, 1.5, .1,
    .4 + (n %% 100) / 100.0, .05, 2 + (n %% 1000) / 500.0, 'bubblewrap', '[]', repeat('a', 64), '', '', '', '', now()
FROM generate_series(0, %(episodes)s - 1) n;
INSERT INTO runs_runevent (run_id, at, level, code, message, data)
SELECT id, created_at, 'info', 'step', 'Step ' || n || ' done.', '{}' FROM runs_run, generate_series(1, 20) n;
ANALYZE;
"""


def fill(runs: int) -> dict[str, int]:
    """Rows in bulk, by the owner of the tables."""
    import psycopg
    from django.conf import settings

    from gpu_workers.contracts.groups import GroupTranscript
    from ratchet.store import get_store
    from tests.support.scripted import episode

    sizes = {"runs": runs, "groups": int(runs * GROUPS_A_RUN), "episodes": int(runs * GROUPS_A_RUN * GROUP_SIZE)}
    database = settings.DATABASES["default"]
    records = [episode(index, float(index % 2)) for index in range(GROUP_SIZE)]
    key = get_store().put(GroupTranscript(group_id="g", task_key="t", task_hash="h", episodes=records).encode())
    with psycopg.connect(host=database["HOST"], dbname=database["NAME"], user="postgres", autocommit=True) as owner:
        owner.execute(FILL % (sizes | {"transcript": f"'{key}'"}))
        owner.execute("VACUUM ANALYZE")
        owner.execute("CHECKPOINT")  # what filling left to write is not what is measured
    return sizes


def endpoints(caller: Any) -> dict[str, list[str]]:
    """URLs by endpoint, of what the caller may read."""
    from apps.runs.models import Episode, Group, Run

    rng = random.Random(1)
    mine = list(Run.objects.filter(project__memberships__user=caller).values_list("id", flat=True)[:2000])
    runs = [str(run) for run in rng.sample(mine, 60)]
    groups = [
        str(g) for g in Group.objects.filter(run__in=runs, task__split="train").values_list("id", flat=True)[:200]
    ]
    episodes = [str(e) for e in Episode.objects.filter(group__in=groups).values_list("id", flat=True)[:200]]
    sub = lambda path: [f"runs/{run}/{path}" for run in runs]  # noqa: E731
    return {
        "runs": ["runs/", "runs/?page_size=200"],
        "runs of a project": [f"runs/?project=project-{n}" for n in range(8)],
        "runs by state": [f"runs/?state={state}" for state in ("failed", "succeeded", "running")],
        "run": sub(""),
        "ledger": sub("ledger/"),
        "events": sub("events/"),
        "checkpoints": sub("checkpoints/"),
        "groups of a run": sub("groups/"),
        "metrics": sub("metrics/"),
        "live": sub("live/"),
        "group": [f"groups/{group}/" for group in groups],
        "episodes": ["episodes/", "episodes/?page_size=200"],
        "episodes of a project": [f"episodes/?project=project-{n}" for n in range(8)],
        "episodes of a run": [f"episodes/?run={run}" for run in runs],
        "episodes by verdict": ["episodes/?verdict=fail", "episodes/?success=true", "episodes/?tamper=true"],
        "episode": [f"episodes/{episode}/" for episode in episodes],
        "suites": ["suites/"],
        "policies": ["policies/"],
        "audit": ["audit/", "audit/?project=project-1"],
    }


async def ask(
    base: str, secret: str, urls: dict[str, list[str]], rate: float, seconds: float
) -> dict[str, list[float]]:
    """Requests at fixed moments; milliseconds from due to whole answer."""
    import httpx

    rng, times = random.Random(2), defaultdict(list)
    limits = httpx.Limits(max_connections=100)
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60, limits=limits) as client:

        async def one(name: str, path: str, due: float) -> None:
            answer = await client.get(path)
            if answer.status_code != 200:
                raise SystemExit(f"{path}: {answer.status_code} {answer.text[:300]}")
            times[name].append(1000 * (time.perf_counter() - due))

        for name, paths in urls.items():  # warm: plans, caches, connections
            await one(name, paths[0], time.perf_counter())
        times.clear()
        names, started, tasks = list(urls), time.perf_counter(), []
        for number in range(int(rate * seconds)):
            due = started + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            name = names[number % len(names)]
            tasks.append(asyncio.create_task(one(name, rng.choice(urls[name]), due)))
        await asyncio.gather(*tasks)
    return times


def plans(caller: Any, urls: dict[str, list[str]], path: Path) -> None:
    """The slowest statement of each endpoint with its plan, from the ORM's own log."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext
    from rest_framework.test import APIClient

    client, lines = APIClient(), []
    client.force_authenticate(caller)
    for name, paths in urls.items():
        client.get(f"/api/v1/{paths[-1]}")
        with CaptureQueriesContext(connection) as queries:
            client.get(f"/api/v1/{paths[-1]}")
        slowest = max(queries.captured_queries, key=lambda query: float(query["time"]), default=None)
        if slowest is None or not slowest["sql"].startswith("SELECT"):
            continue
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) " + slowest["sql"])
            plan = "\n".join(row[0] for row in cursor.fetchall())
        lines.append(f"## {name}\n\n{len(queries)} statements, the slowest:\n\n```\n{slowest['sql']}\n\n{plan}\n```\n")
    path.write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--plans", type=Path)
    options = parser.parse_args()
    with plane("web") as machine:
        from apps.accounts.models import Membership, Project, User
        from apps.accounts.services import issue_token
        from apps.runs.models import Run
        from tests.support.worlds import make_world, run_spec

        world = make_world(slug="project-0")
        world.suite.verifier = {"kind": "exact", "version": 1}
        world.suite.save()
        import msgspec

        from gpu_workers.contracts.runspec import parse_run_spec

        spec = msgspec.to_builtins(parse_run_spec(run_spec()))
        Run.objects.create(
            project=world.project, number=1, spec=spec, spec_hash="x" * 64, suite=world.suite, policy=world.policy
        )
        caller = User.objects.create_user("caller", password="a long password")
        for number in range(PROJECTS):
            project, _ = Project.objects.get_or_create(slug=f"project-{number}", defaults={"title": f"P{number}"})
            if number < 0.8 * PROJECTS:
                Membership.objects.create(user=caller, project=project, role="engineer")
        started = time.perf_counter()
        sizes = fill(options.runs)
        filled = time.perf_counter() - started
        secret = issue_token(user=caller, name="bench", by=caller).secret
        urls = endpoints(caller)
        base = f"http://127.0.0.1:{machine.variables['RATCHET_PORT']}/api/v1/"
        spent = cpu_seconds(machine, "web")
        times = asyncio.run(ask(base, secret, urls, options.rate, options.seconds))
        spent = cpu_seconds(machine, "web") - spent
        ordered = sorted(value for values in times.values() for value in values)
        at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))])  # noqa: E731
        result: dict[str, Any] = {
            "p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "requests": len(ordered), "rate": options.rate,
            "web_cpu_ms_a_request": round(1000 * spent / len(ordered), 1),
            "worst_by_endpoint_ms": {name: round(max(values)) for name, values in times.items()},
            "median_by_endpoint_ms": {name: round(statistics.median(values)) for name, values in times.items()},
            **sizes, "fill_seconds": round(filled), **conditions(),
        }  # fmt: skip
        result["ok"] = result["p99_ms"] < AIM_MS
        if options.plans:
            plans(caller, urls, options.plans)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
