"""Claim: bounded staleness runs at 95 % of what its busier side allows and ≥ 2.77 × as fast as bound 0 (AReaL's figure)
wherever the limit leaves room for it; no sample is over the bound. And 10,000 episodes at once are cheap to schedule.

The production reconciler, services, database and rollout workers in virtual time; engine and trainer only take time:
episodes log-normal (σ = 1) or Pareto (α = 1.5) around 20 s, a training step 1, 1/2 or 1/4 of the rollout time that a
batch costs a full fleet, 50 ms a message, 0.5 s an install. The share of the limit is the busy share of the busier
side once the pipeline is full, less what was generated for groups that went stale. All ratios at 64 concurrent
episodes, 1 : 2 at 256 and, log-normal, at 1,024.
Run: `python benchmarks/scheduling.py [--quick] [--concurrent 64 256] [--bound 4]` (whole: about half an hour).
"""

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _schedule_world as world

AIM_SPEEDUP, AIM_SHARE = 2.77, 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size, one ratio, few steps")
    parser.add_argument("--concurrent", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--ratio", type=float, nargs="*", default=[1.0, 2.0, 4.0])
    parser.add_argument("--distribution", nargs="*", default=["lognormal", "pareto"])
    parser.add_argument("--bound", type=int, default=8)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--many", type=int, default=10_000, help="episodes at once in the second part; 0: none")
    options = parser.parse_args()
    if options.quick:
        options.concurrent, options.ratio, options.many = [64], [2.0], 0
    with world.database() as place:
        rows = [  # the whole grid at the smallest size
            compare(place, distribution, concurrent, ratio, options)
            for concurrent in options.concurrent
            for distribution in options.distribution
            for ratio in options.ratio
            if concurrent == min(options.concurrent)
            or (ratio == 2.0 and (concurrent < 1024 or distribution == "lognormal"))
        ]
        print(json.dumps({"runs": rows, "many": many_at_once(place, options.many) if options.many else None}))


def compare(place: Any, distribution: str, concurrent: int, ratio: float, options: Any) -> dict[str, Any]:
    """The same episodes with bound 0 and with the bound, one after the other."""
    steps = options.steps if concurrent < 1024 else 2 * options.bound + 10
    setting = {"distribution": distribution, "concurrent": concurrent, "ratio": ratio}
    zero = world.play(world.Setting(**setting, bound=0, steps=8), place)
    bound = world.play(world.Setting(**setting, bound=options.bound, steps=steps), place)
    share = bound["share_of_limit"]
    row = {
        **setting,
        "bound": options.bound,
        "speedup": round(zero["seconds_per_step"] / bound["seconds_per_step"], 2),
        "share_of_limit": share,
        "over_bound": zero["over_bound"] + bound["over_bound"],
        "stale_share": round(bound["stale"] / bound["groups"], 3),
        "reached": share >= AIM_SHARE,
        "zero": zero,
        "asynchronous": bound,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def many_at_once(place: Any, episodes: int) -> dict[str, Any]:
    """Admission, dispatch, ingest and batching of so many episodes, all open at once: CPU, statements, memory."""
    import psutil
    from django.db import connection

    from apps.runs import jobs, messaging
    from apps.runs.models import Group, Run
    from apps.runs.services import submit_run
    from gpu_workers.contracts.enums import ReasonCode, StopReason, Verdict
    from gpu_workers.contracts.groups import EpisodeRecord, jsonable
    from gpu_workers.contracts.messages import GroupReport, Heartbeat, PolicyInstalled, Report, TrainerStarted

    project = world.make_project(place, num_tasks=512)
    sent: list[Any] = []
    advances: list[str] = []
    trains: list[Any] = []
    fleet: list[Any] = []
    for name, target in (
        ("send_rollout", sent.append), ("send_train", trains.append), ("send_fleet", fleet.append),
        ("put", lambda queue, payload: None), ("signal_groups", lambda signal: None),
        ("request_advance", lambda run_id, delay_seconds=0.0: advances.append(str(run_id))),
    ):  # fmt: skip
        setattr(messaging, name, target)
    server = psutil.Process(place.server.pid)

    def measured(work: Any) -> dict[str, float]:
        def database_seconds() -> float:
            return sum(p.cpu_times().user + p.cpu_times().system for p in (server, *server.children(recursive=True)))

        statements = 0

        def count(execute: Any, *arguments: Any) -> Any:
            nonlocal statements
            statements += 1
            return execute(*arguments)

        before, database_before, wall = time.process_time(), database_seconds(), time.monotonic()
        with connection.execute_wrapper(count):
            work()
        return {
            "cpu_ms_per_episode": round(1e3 * (time.process_time() - before) / episodes, 3),
            "database_cpu_ms_per_episode": round(1e3 * (database_seconds() - database_before) / episodes, 3),
            "statements_per_episode": round(statements / episodes, 3),
            "seconds": round(time.monotonic() - wall, 2),
        }

    groups = episodes // world.GROUP_SIZE
    spec = {
        "suite": "s", "policy": "base", "steps": 4, "seed": 1,
        "rollout": {"prompts_per_batch": groups // 2, "group_size": world.GROUP_SIZE, "max_staleness": 1},
    }  # fmt: skip
    run = submit_run(project=project.project, spec=spec, by=project.user)
    jobs.advance(str(run.pk))
    train = trains[0]
    jobs.heartbeat(jsonable(Heartbeat(run_id=train.run_id, attempt=1, token=train.token, worker="w")))
    jobs.advance(str(run.pk))
    for kind, body, token in (
        ("trainer_started", TrainerStarted(), train.token),
        ("installed", PolicyInstalled(job_id=fleet[0].job_id, ok=True, engines=["e"]), 0),
    ):
        report = Report(report_id=kind, kind=kind, body=jsonable(body), run_id=str(run.pk), run_attempt=1, token=token)
        jobs.ingest_report(jsonable(report))

    def open_all() -> None:
        while len(sent) < groups:
            before = len(sent)
            jobs.advance(str(run.pk))
            assert len(sent) > before, f"only {before} of {groups} groups are out"

    result: dict[str, Any] = {"episodes": episodes, "groups": groups, "admit_and_dispatch": measured(open_all)}
    assert Group.objects.filter(run=run, state="running").count() == groups

    def record(index: int) -> EpisodeRecord:
        good = index % 2 == 0
        return EpisodeRecord(
            index=index, seed=index, stop_reason=StopReason.ANSWERED, answer="x" * 200, reward=float(good),
            verdict=Verdict.PASS if good else Verdict.FAIL, success=good,
            reason_code=ReasonCode.OK if good else ReasonCode.WRONG_ANSWER, num_turns=2, num_sampled_tokens=100,
        )  # fmt: skip

    payloads = []
    for job in sent[:groups]:
        body = GroupReport(
            group_id=job.group_id, attempt=1, uri=f"objects/aa/{job.group_id}", transcript="t",
            episodes=[record(index) for index in range(world.GROUP_SIZE)], started_at=time.time() - 1,
            finished_at=time.time(), duration_seconds=1.0,
        )  # fmt: skip
        report = Report(report_id=job.group_id, kind="group", body=jsonable(body), run_id=str(run.pk), run_attempt=1)
        payloads.append(jsonable(report))
    result["ingest"] = measured(lambda: [jobs.ingest_report(payload) for payload in payloads])
    idle = [measured(lambda: jobs.advance(str(run.pk))) for _ in range(3)]
    result["advance_seconds"] = [row["seconds"] for row in idle]
    result["ticks_seconds"] = statistics.median(
        measured(lambda: jobs.advance(str(run.pk)))["seconds"] for _ in range(5)
    )
    result["batches"] = Run.objects.get(pk=run.pk).batches.count()
    result["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    result["database_memory_mib"] = sum(
        p.memory_full_info().pss for p in (server, *server.children(recursive=True))
    ) // 2**20  # fmt: skip
    return result


if __name__ == "__main__":
    main()
