"""A world to open gates in: an incumbent in production, a candidate of a run, a suite, scripted workers."""

from collections import deque

from apps.evaluations.gate_policies import DEFAULT_METRICS, create_gate_policy
from apps.policies.services import set_channel
from apps.promotions import jobs
from apps.promotions.services import open_gate
from tests.support.evaluations import Workers, committed, fill, make_policy, make_suite


class GateWorld:
    """What a gate needs; `open` opens one and `finish` plays the workers until the verdict."""

    def __init__(self, project, engineer, workers: Workers, computes: deque) -> None:
        self.project, self.engineer, self.workers, self.computes = project, engineer, workers, computes
        self.suite = make_suite(project, dev=4, heldout=80, regression=24)
        self.incumbent = make_policy(project, "incumbent")
        self.candidate = make_policy(project, "candidate", by=engineer)
        self.prompted = make_policy(project, "prompted", adapter=False)
        self.channel = set_channel(project=project, name="production", policy=self.incumbent, by=None)
        loose = {"required": True, "margin": 0.1}  # what 80 clean tasks can show at the second look
        rules = {**DEFAULT_METRICS, "tamper": loose, "invalid_tool_calls": loose}
        self.gate_policy = create_gate_policy(project=project, slug="default", by=None, metrics=rules)
        self.broken: set[str] = set()  # keys of tasks that the candidate fails in the replay

    def outcome(self, success: float, **fields):
        """The candidate passes every task with a number below `success` × 80, the others pass 24."""

        def decide(task, adapter, index):
            number, new = int(task.key.split("-")[1]), adapter == self.candidate.engine_name
            if task.split == "regression":
                return {"success": not (new and task.key in self.broken)}
            passed = number < 80 * success if new else number % 10 < 3
            return {"success": passed, "total_seconds": 1 + number / 200, **(fields if new else {})}

        return decide

    def open(self, **changes):
        values = {"candidate": self.candidate, "by": self.engineer, "extra_arms": [self.prompted], **changes}
        with committed():
            return open_gate(
                project=self.project, channel=self.channel, gate_policy=self.gate_policy, suite=self.suite, **values
            )

    def finish(self, gate, success: float = 0.9, **fields):
        fill(gate.evaluation, self.outcome(success, **fields))
        self.workers.answer_fleet()
        self.compute()
        gate.refresh_from_db()
        return gate

    def compute(self) -> None:
        while self.computes:
            with committed():
                jobs.compute(str(self.computes.popleft()))

    def replay(self, gate):
        gate.refresh_from_db()
        fill(gate.regression, self.outcome(1.0))
        self.compute()
        gate.refresh_from_db()
        self.channel.refresh_from_db()
