"""A small suite of the test's own, and the checks of its tasks."""

from collections.abc import Callable
from typing import Any

import pytest

from apps.audit.messaging import ANCHOR
from apps.tasks.models import Suite, TaskState
from apps.tasks.services import apply_checks, import_suite
from apps.tasks.suites.definition import FailureMode, SuiteDefinition, SuiteTask
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.messages import TaskCheck
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec


def make_definition(**changes: Any) -> SuiteDefinition:
    values: dict[str, Any] = {
        "slug": "sums",
        "title": "Sums",
        "description": "",
        "distribution": "Sums of two small numbers.",
        "failure_modes": (FailureMode("WRONG_ANSWER", "another number"),),
        "verifier_kind": VerifierKind.NUMBER,
    }
    return SuiteDefinition(**{**values, **changes})


def make_task(key: str, question: str, split: Split = Split.TRAIN, **changes: Any) -> SuiteTask:
    values: dict[str, Any] = {
        "prompt": [Message(role="user", content=question)],
        "verifier": VerifierSpec(kind=VerifierKind.NUMBER, expected=3),
        "reference": [Message(role="assistant", content="3")],
        "cluster": "plus",
        "tags": ["small"],
    }
    return split, TaskBundle(key=key, **{**values, **changes})


def make_tasks() -> list[SuiteTask]:
    return [
        make_task("t1", "1 + 2?"),
        make_task("t2", "2 + 1?", tags=["small", "swapped"]),
        make_task("d1", "0 + 3?", Split.DEV),
        make_task("h1", "secret 3 + 0?", Split.HELDOUT, cluster="zero"),
        make_task("h2", "secret 4 - 1?", Split.HELDOUT, cluster="minus"),
    ]


@pytest.fixture
def sent(monkeypatch) -> list[tuple[str, dict[str, Any], str]]:
    """Messages to workers: name, job, queue."""
    messages: list[tuple[str, dict[str, Any], str]] = []

    def send(name: str, args: list[Any], queue: str) -> None:
        if name != ANCHOR:  # the audit trail's, to itself
            messages.append((name, args[0], queue))

    monkeypatch.setattr("apps.tasks.checks.app.send_task", send)
    return messages


@pytest.fixture
def suite(project, sent) -> Suite:
    """Imported, its tasks not checked yet."""
    return import_suite(project=project, definition=make_definition(), tasks=make_tasks(), by=None)


@pytest.fixture
def check() -> Callable[..., Suite]:
    """Report the checks of a suite's open tasks: all passed but the named ones."""

    def report(suite: Suite, *bad: str, code: str = "WRONG_ANSWER") -> Suite:
        checks = [
            TaskCheck(
                task_id=str(task.pk),
                ok=task.key not in bad,
                reason_code=code if task.key in bad else "OK",
                message=f"the reference of {task.key} fails" if task.key in bad else "",
            )
            for task in suite.tasks.filter(state=TaskState.UNCHECKED)
        ]
        apply_checks(suite_id=suite.pk, checks=checks)
        suite.refresh_from_db()
        return suite

    return report
