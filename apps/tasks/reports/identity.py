"""What a report is identified by."""

import hashlib
from typing import Any

import msgspec

from apps.tasks.models import Suite
from apps.tasks.reports.attempts import SuiteAttempts
from apps.tasks.reports.options import ReportOptions

HALF = 32  # hexadecimal digits


def input_hash(suite: Suite, options: ReportOptions, attempts: SuiteAttempts) -> str:
    """What a report is computed from: the same hash, the same report. Its first half is that of the tasks alone."""
    return tasks_hash(suite) + _digest([msgspec.to_builtins(options), attempts.plain()])


def tasks_hash(suite: Suite) -> str:
    """Of a suite's tasks and their states: a release, or a task set aside, changes it."""
    return _digest(
        [suite.content_hash, sorted((str(pk), state) for pk, state in suite.tasks.values_list("pk", "state"))]
    )


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:HALF]
