"""A suite of weakly tested functions, and a verify worker that answers in the test's own process."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from apps.runs.services.reports import ingest_report
from apps.tasks.measurements.models import VerifierMeasurement
from apps.tasks.measurements.services import request_measurement
from apps.tasks.models import Suite
from apps.tasks.services import apply_checks, import_suite
from apps.tasks.suites.human_eval import LIMITS, PROGRAM
from gpu_workers import measure_jobs
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.measurements import MeasureJob
from gpu_workers.contracts.messages import Report, TaskCheck
from gpu_workers.contracts.tasks import EnvironmentContract, Message, VerifierSpec
from tests.support.evaluations import committed
from tests.unit.apps.tasks.conftest import make_definition, make_task


@dataclass
class Plane:
    """Messages to the verify worker are kept; `work` answers them."""

    suite: Suite
    sent: deque[MeasureJob] = field(default_factory=deque)
    reports: list[Report] = field(default_factory=list)

    def request(self, by: Any = None, **options: Any) -> VerifierMeasurement:
        with committed():
            return request_measurement(suite=self.suite, by=by, options=options)

    def work(self) -> None:
        while self.sent:
            measure_jobs.measure_tasks(jsonable(self.sent.popleft()))
            with committed():
                assert ingest_report(jsonable(self.reports[-1])) == "stored"

    def measure(self, **options: Any) -> VerifierMeasurement:
        measurement = self.request(**options)
        self.work()
        measurement.refresh_from_db()
        return measurement


def function_task(key: str, split: Split, *, body: str = "    if a > b:\n        return a\n    return b\n") -> Any:
    prompt = f'def larger(a: int, b: int) -> int:\n    """The larger one: {key} <b>."""\n'
    test = "def check(candidate):\n    assert candidate(3, 2) == 3\n"
    return make_task(
        key, f"secret {key}" if split is Split.HELDOUT else key, split,
        contract=EnvironmentContract(limits=LIMITS),
        verifier=VerifierSpec(
            kind=VerifierKind.PROGRAM, program=PROGRAM,
            expected={"prompt": prompt, "entry_point": "larger", "test": test},
        ),
        reference=[Message(role="assistant", content=f"```python\n{prompt}{body}```")],
    )  # fmt: skip


def imported(project: Any, tasks: Any, **changes: Any) -> Suite:
    suite = import_suite(project=project, definition=make_definition(**changes), tasks=tasks, by=None)
    apply_checks(suite_id=suite.pk, checks=[TaskCheck(task_id=str(task.pk), ok=True) for task in suite.tasks.all()])
    suite.refresh_from_db()
    return suite


def function_tasks() -> list[Any]:
    """One task of train, one held out."""
    return [function_task("t1", Split.TRAIN), function_task("h1", Split.HELDOUT)]
