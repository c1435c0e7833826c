"""What a suite's content hashes to, and what is wrong with it as a whole. Pure."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from apps.tasks.suites.definition import SuiteDefinition, SuiteTask
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.tasks import TaskBundle

PREVIEW_LENGTH = 240
_SLUG = re.compile(r"[a-zA-Z0-9_-]{1,50}")
_MAX_NAMED = 20  # errors of one kind that are listed one by one


@dataclass(frozen=True)
class PreparedTask:
    """A task with its stored bytes and hashes."""

    split: Split
    bundle: TaskBundle
    data: bytes
    task_hash: str
    prompt_hash: str

    @property
    def preview(self) -> str:
        """The last message of the prompt, shortened."""
        text = " ".join(self.bundle.prompt[-1].content.split()) if self.bundle.prompt else ""
        return text if len(text) <= PREVIEW_LENGTH else text[: PREVIEW_LENGTH - 1] + "…"


def prepare(tasks: Iterable[SuiteTask]) -> list[PreparedTask]:
    """Encode every task canonically and hash it."""
    prepared = []
    for split, bundle in tasks:
        data = msgspec.json.encode(bundle, order="sorted")
        task_hash = hashlib.sha256(data).hexdigest()
        prepared.append(PreparedTask(split, bundle, data, task_hash, prompt_hash(bundle)))
    return prepared


def prompt_hash(bundle: TaskBundle) -> str:
    """Hash of what the policy meets: prompt, tools, files. Case and blanks are folded, so that copies are found."""
    texts = [" ".join(message.content.split()).casefold() for message in bundle.prompt]
    content = [texts, msgspec.to_builtins(bundle.tools), dict(bundle.contract.files)]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def content_hash(tasks: Sequence[PreparedTask]) -> str:
    """SHA-256 over key, split and hash of every task, whatever their order."""
    rows = sorted((task.bundle.key, str(task.split), task.task_hash) for task in tasks)
    return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()


def definition_errors(definition: SuiteDefinition, tasks: Sequence[PreparedTask]) -> list[dict[str, str]]:
    """What a suite must declare before any trajectory: distribution, failure modes, a held-out split."""
    errors = []
    if not _SLUG.fullmatch(definition.slug):
        errors.append(_error("slug", "must be 1 to 50 letters, digits, - or _"))
    if not definition.title.strip():
        errors.append(_error("title", "is empty: name the suite for people"))
    if not definition.distribution.strip():
        errors.append(_error("distribution", "is empty: say in words which tasks these are a sample of"))
    if not definition.failure_modes:
        errors.append(_error("failure_modes", "is empty: list the reason codes of failures, each with its meaning"))
    if not tasks:
        return [*errors, _error("tasks", "there is none")]
    if all(task.split is not Split.HELDOUT for task in tasks):
        errors.append(_error("tasks", "none has split heldout: keep some away from training, the gate needs them"))
    return errors


def task_errors(tasks: Sequence[PreparedTask]) -> list[dict[str, str]]:
    """Keys used twice and tasks that are in more than one split."""
    return [*_repeated_keys(tasks), *_overlaps(tasks)]


def _repeated_keys(tasks: Sequence[PreparedTask]) -> list[dict[str, str]]:
    seen: dict[str, PreparedTask] = {}
    errors = []
    for task in tasks:
        first = seen.setdefault(task.bundle.key, task)
        if first is not task:
            where = "the same split" if first.split == task.split else f"{first.split} and {task.split}"
            errors.append(_error(f"task {task.bundle.key}", f"the key is used twice, in {where}"))
    return _shorten(errors)


def _overlaps(tasks: Sequence[PreparedTask]) -> list[dict[str, str]]:
    groups: dict[str, list[PreparedTask]] = defaultdict(list)
    for task in tasks:
        groups[task.prompt_hash].append(task)
    errors = []
    for group in groups.values():
        first = group[0]
        for task in group[1:]:
            if task.split != first.split:
                message = f"asks in {task.split} what task {first.bundle.key} asks in {first.split}: splits overlap"
                errors.append(_error(f"task {task.bundle.key}", message))
    return _shorten(errors)


def _shorten(errors: list[dict[str, str]]) -> list[dict[str, str]]:
    if len(errors) <= _MAX_NAMED:
        return errors
    return [*errors[:_MAX_NAMED], _error("tasks", f"and {len(errors) - _MAX_NAMED} more like these")]


def _error(path: str, message: str) -> dict[str, str]:
    return {"path": path, "message": message}


def declared(definition: SuiteDefinition) -> dict[str, Any]:
    """The columns of a suite that come from its definition."""
    return {
        "title": definition.title,
        "description": definition.description,
        "distribution": definition.distribution,
        "failure_modes": [{"code": str(mode.code), "meaning": mode.meaning} for mode in definition.failure_modes],
        "verifier": {"kind": str(definition.verifier_kind), "version": definition.verifier_version},
        "audit_verifier": (
            {"kind": str(definition.audit_kind), "version": definition.audit_version} if definition.audit_kind else {}
        ),
    }
