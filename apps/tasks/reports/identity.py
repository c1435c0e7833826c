"""What a report is identified by."""

import hashlib

import msgspec

from apps.tasks.models import Suite
from apps.tasks.reports.attempts import SuiteAttempts
from apps.tasks.reports.options import ReportOptions


def input_hash(suite: Suite, options: ReportOptions, attempts: SuiteAttempts) -> str:
    """SHA-256 over what a report is computed from: the same hash, the same report."""
    states = sorted((str(pk), state) for pk, state in suite.tasks.values_list("pk", "state"))
    content = [suite.content_hash, states, msgspec.to_builtins(options), attempts.plain()]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
