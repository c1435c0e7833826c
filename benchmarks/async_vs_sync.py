"""Claim: training with a staleness bound of 1 finishes a run at least 1.5× as fast as synchronous training (bound 0).

The whole machine on its real processes: SmolLM2-135M-Instruct, the toolbox suite, tools that run in sandboxes and wait
a heavy-tailed time (log-normal, median 2 s, σ = 1, capped at 20 s; the same task waits the same in every run). Runs of
both kinds take turns in one session; what is compared is the time from the first group sent to the last step stored.
Prints one JSON object. Run: `python benchmarks/async_vs_sync.py [--repeats N] [--steps N]` (about 15 minutes).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]

AIM = 1.5
MODEL = "smollm2-135m-instruct"
PROMPTS_PER_BATCH, GROUP_SIZE = 4, 8
RUN_LIMIT_SECONDS = 1800
DELAY = """
import random as _random, time as _time
_inner = call
def call(arguments):
    _time.sleep(min(_random.Random(repr(sorted(arguments.items()))).lognormvariate(0.693, 1.0), 20.0))
    return _inner(arguments)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.repeats, options.steps)))
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as home:
        command = f"{sys.executable} {__file__} --inside --repeats {options.repeats} --steps {options.steps}"
        environment = {**os.environ, "RATCHET_HOME": home, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
        up = [sys.executable, "-m", "ratchet.services", "up", "--without", "gateway", "--exit", "--then", command]
        raise SystemExit(subprocess.run(up, cwd=ROOT, env=environment, check=False).returncode)


def measure(repeats: int, steps: int) -> dict[str, Any]:
    """Both kinds of run, in turns, after one short run that warms every process up."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ratchet.settings.development")
    django.setup()
    project, engineer = prepare()
    train(project, engineer, bound=1, steps=1)
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(repeats):
        for bound in (0, 1):
            seconds[bound].append(train(project, engineer, bound=bound, steps=steps))
            print(f"bound {bound}: {seconds[bound][-1]:.1f} s", file=sys.stderr, flush=True)
    ratios = [synchronous / asynchronous for synchronous, asynchronous in zip(seconds[0], seconds[1], strict=True)]
    return {
        "steps": steps,
        "synchronous_seconds": seconds[0],
        "asynchronous_seconds": seconds[1],
        "speedup": statistics.median(ratios),
        "aim": AIM,
        "reached": statistics.median(ratios) >= AIM,
    }


def prepare() -> tuple[Any, Any]:
    """A project with the slow toolbox suite, ready, and a prompted policy."""
    import msgspec
    from django.core.management import call_command

    from apps.accounts.bootstrap import bootstrap_installation
    from apps.accounts.models import Project, User
    from apps.policies.selectors import find_base_model
    from apps.policies.services import create_policy
    from apps.tasks.models import Suite
    from apps.tasks.services import import_suite
    from apps.tasks.suites import toolbox

    bootstrap_installation(projects={"bench": "Benchmark"})
    call_command("register_base_model", MODEL)
    project, engineer = Project.objects.get(slug="bench"), User.objects.get(username="engineer")
    create_policy(
        project=project, slug="prompted", title="", kind="prompt", base_model=find_base_model(MODEL), by=engineer,
        num_shots=2,
    )  # fmt: skip
    definition, tasks = toolbox.build()
    slow = [
        (
            split,
            msgspec.structs.replace(
                task, tools=[msgspec.structs.replace(tool, source=tool.source + DELAY) for tool in task.tools],
                contract=msgspec.structs.replace(
                    task.contract, limits=msgspec.structs.replace(task.contract.limits, tool_timeout_seconds=60.0)
                ),
            ),
        )
        for split, task in tasks
    ]  # fmt: skip
    suite = import_suite(project=project, definition=definition, tasks=slow, by=engineer)
    while Suite.objects.get(pk=suite.pk).state == "checking":
        time.sleep(1)
    return project, engineer


def train(project: Any, engineer: Any, *, bound: int, steps: int) -> float:
    """Seconds from the first group sent to the last step stored."""
    from apps.runs.models import Batch, Group, Run
    from apps.runs.services import submit_run

    spec = {
        "name": f"bound {bound}", "suite": "toolbox", "policy": "prompted", "steps": steps, "seed": 1,
        "rollout": {
            "prompts_per_batch": PROMPTS_PER_BATCH, "group_size": GROUP_SIZE, "max_staleness": bound,
            "max_new_tokens": 40, "num_shots": 2,
        },
        "evaluation": {"dev_tasks": 0},
    }  # fmt: skip
    run = submit_run(project=project, spec=spec, by=engineer)
    deadline = time.monotonic() + RUN_LIMIT_SECONDS
    while not (run := Run.objects.get(pk=run.pk)).finished_at:
        if time.monotonic() > deadline:
            raise SystemExit(f"the run with bound {bound} took over {RUN_LIMIT_SECONDS} s: {run.status_message}")
        time.sleep(0.5)
    if run.state != "succeeded":
        raise SystemExit(f"the run with bound {bound} {run.state}: {run.status_message}")
    first = Group.objects.filter(run=run, dispatched_at__isnull=False).earliest("dispatched_at").dispatched_at
    last = Batch.objects.filter(run=run, state="trained").latest("trained_at").trained_at
    return float((last - first).total_seconds())


if __name__ == "__main__":
    main()
