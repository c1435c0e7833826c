"""The steps of the demo, each repeatable: what is there already is used, what is missing is made."""

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.demo import plan
from ratchet.demo.api import Api, DemoError, Resource

FINAL = ("succeeded", "failed", "halted", "cancelled")
RUN_LIMIT_SECONDS = 3600.0


class Demo:
    """`engineer` submits; `manager` sets channels up. Decisions are left to people in the browser."""

    def __init__(self, engineer: Api, manager: Api) -> None:
        self.engineer = engineer
        self.manager = manager

    def suite(self, project: str, source: str) -> Resource:
        """Import a suite and wait until its tasks are checked."""
        body = {"project": project, "source": source}
        suite = self.engineer.create("suites/import/", body, f"demo-{project}-{source}")
        suite = self.engineer.wait(
            f"suites/{suite['id']}/",
            done=lambda s: s["state"] != "checking",
            say=lambda s: f"  suite {s['slug']}@{s['version']}: {s['state']}",
            limit_seconds=900,
        )
        if suite["state"] != "ready":
            raise DemoError(f"suite {source} is {suite['state']}: {suite['status_message']}")
        return suite

    def prompted_policy(self, project: str, num_shots: int) -> None:
        body = {
            "project": project,
            "slug": "prompted",
            "title": f"SmolLM2-135M with {num_shots} worked examples",
            "base_model": plan.BASE_MODEL,
            "num_shots": num_shots,
        }
        if not self.engineer.list("policies/", project=project, slug="prompted"):
            self.engineer.create("policies/", body, f"demo-{project}-prompted")

    def channel(self, project: str, policy: str) -> None:
        """Production serves `policy` unless it serves something already."""
        if not any(c["name"] == "production" for c in self.manager.list("channels/", project=project)):
            body = {"project": project, "name": "production", "policy": policy}
            self.manager.create("channels/", body, f"demo-{project}-production")

    def submit(self, project: str, spec: dict[str, Any], key: str) -> str:
        run = self.engineer.create("runs/", {"project": project, "spec": spec}, f"demo-{key}")
        print(f"  run {run['number']} of {project}: {spec['name']}", flush=True)
        return str(run["id"])

    def wait_run(self, run_id: str) -> Resource:
        """Wait for the run's end; returns it. Raises DemoError unless it succeeded."""
        run = self.engineer.wait(
            f"runs/{run_id}/", done=lambda r: r["state"] in FINAL, say=_run_line, limit_seconds=RUN_LIMIT_SECONDS
        )
        if run["state"] != "succeeded":
            raise DemoError(f"run {run['number']} {run['state']}: {run['status_code']} {run['status_message']}")
        return run

    def open_gate(
        self,
        project: str,
        suite: str,
        candidate: str,
        run_id: str,
        *,
        baselines: Sequence[str] = (),
        sampling: Mapping[str, Any] | None = None,
    ) -> str:
        """Incumbent, candidate and simpler policies beside them, interleaved on held-out tasks; by default greedy."""
        body = {
            "project": project,
            "channel": "production",
            "candidate": candidate,
            "suite": suite,
            "baselines": list(baselines),
            "run": run_id,
            **({"sampling": dict(sampling)} if sampling else {}),
        }
        gate = self.engineer.create("gates/", body, f"demo-gate-{run_id}")
        return str(gate["id"])

    def wait_gate(self, gate_id: str) -> Resource:
        gate = self.engineer.wait(
            f"gates/{gate_id}/",
            done=lambda g: g["state"] != "evaluating",
            say=lambda g: f"  gate {g['number']}: {g['state']} {_progress(g)}",
            limit_seconds=RUN_LIMIT_SECONDS,
        )
        if gate["state"] == "failed":
            raise DemoError(f"gate {gate['number']} could not be evaluated: {gate['headline']}")
        return gate


def _run_line(run: Resource) -> str:
    why = f" ({run['status_message']})" if run["status_message"] else ""
    return f"  run {run['number']} of {run['project']}: {run['state']}, step {run['step']} of {run['total_steps']}{why}"


def _progress(resource: Resource) -> str:
    progress = resource.get("progress") or {}
    return f"{progress['done']} of {progress['total']}" if progress else ""
