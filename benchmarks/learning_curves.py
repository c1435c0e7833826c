"""Claim: every algorithm improves SmolLM2-135M-Instruct on held-out tasks, trained by the whole machine.

One run of `grpo`, `gspo`, `ppo` or `sft` on the toolbox suite, submitted, watched and judged through the REST API of a
control plane of its own: real engine, sandboxed tools, trainer and reconciler. The policy starts with two worked
examples in its prompt; the supervised one learns without them. GSPO and PPO make several updates a batch, so that
clipping acts. Every second version is evaluated greedily on the same 64 dev tasks (families of things that training
never names), and a gate plays the start and the result, interleaved, on the 120 held-out tasks.
Prints one JSON object. Run: `python benchmarks/learning_curves.py grpo [--home HOME]` (10 minutes); the figure of
several: `python benchmarks/learning_curves.py --draw FILE.svg RESULT.json …`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT), str(ROOT / "benchmarks")]

from _figure import Line, Panel, draw  # noqa: E402

PROJECT = "curves"
ROLLOUT = {"prompts_per_batch": 8, "group_size": 8, "max_staleness": 1, "max_new_tokens": 40, "num_shots": 2}
RL: dict[str, Any] = {
    "suite": "toolbox", "policy": "prompted", "steps": 8, "seed": 1, "rollout": ROLLOUT,
    "optimiser": {"learning_rate": 3e-4, "warmup_steps": 3}, "evaluation": {"dev_every": 2, "dev_tasks": 64},
}  # fmt: skip
SPECS: dict[str, dict[str, Any]] = {
    "grpo": RL | {"algorithm": {"kind": "grpo"}},
    "gspo": RL | {"algorithm": {"kind": "gspo", "num_updates_per_batch": 2}},
    "ppo": RL | {"algorithm": {"kind": "ppo", "num_updates_per_batch": 2}},
    "sft": RL
    | {
        "max_train_tasks": 240,
        "algorithm": {"kind": "sft", "sft_batch_size": 8, "sft_epochs": 1.0},
        "rollout": ROLLOUT | {"num_shots": 0},
        "optimiser": {"learning_rate": 5e-4, "warmup_steps": 3},
        "evaluation": {"dev_every": 10, "dev_tasks": 64},
    },
}
SERIES = (
    "train/reward_mean", "train/clip_fraction", "train/entropy", "train/kl_old_k3", "train/loss", "train/value_loss",
    "train/explained_variance", "train/target_probability",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=sorted(SPECS), default="grpo")
    parser.add_argument("--home", type=Path, help="keep the control plane's state here, for further runs on it")
    parser.add_argument("--output", type=Path, help="write the result here too")
    parser.add_argument("--draw", type=Path, nargs="+", metavar="FILE", help="an SVG to write, and results to draw")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        text = json.dumps(measure(options.kind))
        print(text)
        if options.output:
            options.output.write_text(text + "\n")
        return
    if options.draw:
        target, *results = options.draw
        target.write_text(draw([panel(json.loads(path.read_text())) for path in results]))
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as scratch:
        home = options.home.resolve() if options.home else Path(scratch)
        command = f"{sys.executable} {__file__} {options.kind} --inside"
        command += f" --output {options.output.resolve()}" if options.output else ""
        environment = {**os.environ, "RATCHET_HOME": str(home), "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
        up = [sys.executable, "-m", "ratchet.services", "up", "--without", "gateway", "--exit", "--then", command]
        raise SystemExit(subprocess.run(up, cwd=ROOT, env=environment, check=False).returncode)


def measure(kind: str) -> dict[str, Any]:
    """Train and judge; what the API says of both."""
    demo = prepare()
    api, key = demo.engineer, f"curve-{kind}"  # with --home, what an earlier call began is gone on with
    started = time.monotonic()
    spec = SPECS[kind] | {"name": f"learning curve: {kind}"}
    run = demo.wait_run(demo.submit(PROJECT, spec, key))
    train_seconds = time.monotonic() - started
    gate = demo.wait_gate(demo.open_gate(PROJECT, "toolbox", run["result"], run["id"]))
    return {"spec": spec, "run_seconds": round(train_seconds)} | report(api, kind, run["id"], gate)


def report(api: Any, kind: str, run_id: str, gate: dict[str, Any]) -> dict[str, Any]:
    """The curve and the held-out outcome of a run that is over."""
    series = {
        row["name"]: dict(zip(row["steps"], row["values"], strict=True))
        for row in api.get(f"runs/{run_id}/metrics/", name=list(SERIES))
    }
    checkpoints = api.list(f"runs/{run_id}/checkpoints/")
    arms = gate["report"]["arms"]
    return {
        "kind": kind,
        "load": round(os.getloadavg()[0], 1),
        "trainer_cpu_seconds": max(c["train_cpu_seconds"] or 0 for c in checkpoints),
        "dev": {c["version"]: [c["dev_success"], c["dev_n"]] for c in checkpoints if c["dev_n"]},
        "series": series,
        "heldout": [
            {name: arm[name] for name in ("role", "label", "n", "num_success", "success", "low", "high")}
            for arm in arms
        ],
        "verdict": gate["verdict"],
        "headline": gate["headline"],
    }


def prepare() -> Any:
    """A project with the suite and the prompted policy in production, and the demo's client."""
    import logging

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ratchet.settings.development")
    django.setup()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request
    from django.core.management import call_command

    from ratchet.demo import plan
    from ratchet.demo.api import Api
    from ratchet.demo.people import day_token, ensure_people
    from ratchet.demo.steps import Demo
    from ratchet.env import load_env

    env = load_env()
    ensure_people({PROJECT: "Learning curves"}, env.home.root / "secrets")
    call_command("register_base_model", plan.BASE_MODEL)
    url = f"http://127.0.0.1:{env.port}"
    demo = Demo(Api(url, day_token("engineer")), Api(url, day_token("manager")))
    demo.prompted_policy(PROJECT, 2)
    demo.suite(PROJECT, "toolbox")
    demo.channel(PROJECT, "prompted")
    return demo


def panel(result: dict[str, Any]) -> Panel:
    """Success on the dev tasks by version, and what the trained batches showed by step."""
    dev = sorted((int(version), share, n) for version, (share, n) in result["dev"].items())
    lines = [
        Line(
            "success on dev tasks, greedy (95 % Wilson)",
            [(version, share) for version, share, _ in dev],
            [wilson(share, n) for _, share, n in dev],
        )
    ]
    for name, label in (("train/reward_mean", "reward of the batch"), ("train/clip_fraction", "share clipped")):
        values = result["series"].get(name, {})
        if any(values.values()):
            lines.append(Line(label, sorted((int(k), v) for k, v in values.items()), dashed=True))
    return Panel(result["kind"].upper(), "version", lines)


def wilson(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share of n."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return centre - half, centre + half


if __name__ == "__main__":
    main()
