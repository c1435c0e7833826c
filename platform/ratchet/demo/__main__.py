"""`python -m ratchet.demo`: what `make demo` runs once everything is up."""

import argparse
import logging
import os
import sys
from dataclasses import dataclass

import django

from ratchet.demo import plan
from ratchet.demo.api import Api, DemoError, Resource
from ratchet.demo.steps import Demo
from ratchet.env import load_env


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ratchet.demo", description=__doc__)
    parser.add_argument("--only", choices=("tools", "calls"), help="one of the two projects")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ratchet.settings.development")
    django.setup()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        _demo(options.only)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass
class _Results:
    """What the closing table shows: (project, arm of its gate), and the gates."""

    rows: list[tuple[str, Resource]]
    gates: list[Resource]


def _demo(only: str | None) -> None:
    from django.core.management import call_command

    from ratchet.demo.people import day_token, ensure_people

    env = load_env()
    projects = {plan.TOOL_PROJECT: "Tool use", plan.CALL_PROJECT: "Function calling"}
    logins = ensure_people(projects, env.home.root / "secrets")
    call_command("register_base_model", plan.BASE_MODEL, title="SmolLM2 135M Instruct", licence="Apache-2.0")
    url = f"http://127.0.0.1:{env.port}"
    _welcome(env.public_url or url, logins)
    demo = Demo(Api(url, day_token("engineer")), Api(url, day_token("manager")))
    results = _Results([], [])
    print("Importing the suites", flush=True)
    for project in projects:
        demo.prompted_policy(project, 2 if project == plan.TOOL_PROJECT else 3)
    if only != "calls":
        demo.suite(plan.TOOL_PROJECT, "toolbox")
    if only != "tools":
        demo.suite(plan.CALL_PROJECT, "bfcl")
    _train_and_judge(demo, only, results)
    _table(env.public_url or url, results)


def _welcome(url: str, logins: dict[str, str]) -> None:
    print(f"\nOpen {url} and watch. Logins (kept in RATCHET_HOME/secrets/demo-logins.json):")
    people = (("engineer", "submits runs"), ("manager", "product manager: decides"), ("reviewer", "labels episodes"))
    for name, what in people:
        print(f"  {name:9} {logins[name]:14} {what}")
    print(flush=True)


def _train_and_judge(demo: Demo, only: str | None, results: _Results) -> None:
    tool_gate = sft = ""
    if only != "calls":
        print("Run A: asynchronous RL with tools in sandboxes", flush=True)
        demo.channel(plan.TOOL_PROJECT, "prompted")
        run = demo.wait_run(demo.submit(plan.TOOL_PROJECT, plan.TOOL_RL, "tool-rl"))
        tool_gate = demo.open_gate(plan.TOOL_PROJECT, "toolbox", run["result"], run["id"])
    if only != "tools":
        print("Run B: the supervised baseline trains while the gate is evaluated", flush=True)
        sft = demo.submit(plan.CALL_PROJECT, plan.CALL_SFT, "call-sft")
    if tool_gate:
        _judged(demo, tool_gate, results)
    if sft:
        _function_calling(demo, sft, results)


def _function_calling(demo: Demo, sft: str, results: _Results) -> None:
    supervised = demo.wait_run(sft)["result"]
    demo.channel(plan.CALL_PROJECT, supervised)
    print("Run B: RL from the supervised policy, which is in production;", flush=True)
    print("       beside it the supervised policy trains on, for the comparison at equal compute", flush=True)
    rl_id = demo.submit(plan.CALL_PROJECT, {**plan.CALL_RL, "policy": supervised}, "call-rl")
    more_id = demo.submit(plan.CALL_PROJECT, {**plan.CALL_SFT_MORE, "policy": supervised}, "call-sft-more")
    rl, more = demo.wait_run(rl_id), demo.wait_run(more_id)
    gate = demo.open_gate(
        plan.CALL_PROJECT, "bfcl", rl["result"], rl["id"],
        baselines=["prompted", more["result"]], sampling=plan.CALL_GATE_SAMPLING,
    )  # fmt: skip
    _judged(demo, gate, results)


def _judged(demo: Demo, gate_id: str, results: _Results) -> None:
    gate = demo.wait_gate(gate_id)
    results.gates.append(gate)
    results.rows += [(gate["project"], arm) for arm in gate["report"]["arms"]]
    print(f"  decision waiting: {gate['headline']}", flush=True)


def _table(url: str, results: _Results) -> None:
    print("\nHeld-out success with 95 % Wilson intervals: tool use greedy, function calling at temperature 1")
    print(f"  {'project':18} {'policy':44} {'success':>8} {'interval':>16} {'n':>5}")
    for project, arm in results.rows:
        low, high = arm["low"], arm["high"]
        label = f"{arm['role']}: {arm['label']}"
        print(f"  {project:18} {label:44} {arm['success']:8.3f} [{low:.3f}, {high:.3f}] {arm['n']:>6}")
    for gate in results.gates:
        print(f"\nGate {gate['number']} of {gate['project']}: {gate['verdict'].upper()}. {gate['headline']}")
        print(f"  decide at {url}/gates/{gate['id']}/")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
