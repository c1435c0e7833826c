"""Writes of runs: one verb each, atomic, audited where a person asked."""

from apps.runs.services.controls import cancel_run, finish_run, pause_run, resume_run, retry_run
from apps.runs.services.groups import close_group, create_group, dispatch_group
from apps.runs.services.installs import request_install
from apps.runs.services.lifecycle import halt_run
from apps.runs.services.submissions import Submission, check_submission, submit_run, unknown_names

__all__ = [
    "Submission", "cancel_run", "check_submission", "close_group", "create_group", "dispatch_group", "finish_run",
    "halt_run", "pause_run", "request_install", "resume_run", "retry_run", "submit_run",
    "unknown_names",
]  # fmt: skip
