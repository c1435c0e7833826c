"""Writes of tasks: import a suite, note a look at held-out content; checks and quarantine are in modules beside."""

import random
from collections.abc import Mapping, Sequence

import msgspec
from django.db import transaction
from django.db.models import Max

from apps.accounts.models import Project, User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.tasks.checks import apply_checks, recheck_suite, resend_checks, start_checks
from apps.tasks.content import PreparedTask, content_hash, declared, definition_errors, prepare, task_errors
from apps.tasks.models import SplitName, Suite, SuiteState, Task
from apps.tasks.quarantine import put_back_task, release_task
from apps.tasks.selectors import load_bundle, ready_tasks
from apps.tasks.suites.definition import SuiteDefinition, SuiteTask
from ratchet.problems import Problem
from ratchet.store import get_store

__all__ = [
    "apply_checks",
    "import_suite",
    "note_heldout_look",
    "put_back_task",
    "recheck_suite",
    "release_task",
    "resend_checks",
    "sft_dataset",
]


def import_suite(
    *,
    project: Project,
    definition: SuiteDefinition,
    tasks: Sequence[SuiteTask],
    by: User | None,
    source: str = "jsonl",
    notes: Sequence[Mapping[str, str]] = (),
) -> Suite:
    """Store a suite as its next version and have every task checked; nothing is stored of one that is refused.

    `notes` ({path, message}) say what the import changed or left out; they stay with the suite.
    Identical content gives the version that exists already; where that failed its checks, they are made again.
    Raises Problem 422 naming every field or task that is wrong.
    """
    require(by, Permission.SUITE_CREATE, project)
    prepared = prepare(tasks)
    errors = [*definition_errors(definition, prepared), *task_errors(prepared)]
    if errors:
        raise Problem("suite_refused", 422, "The suite was not imported: correct what is listed.", errors)
    store = get_store()
    keys = [store.put(task.data) for task in prepared]  # content-addressed: harmless if the transaction fails
    with transaction.atomic():
        Project.objects.select_for_update().get(pk=project.pk)  # one import of a project at a time
        digest, columns = content_hash(prepared), declared(definition)
        same = Suite.objects.filter(project=project, slug=definition.slug, content_hash=digest, **columns)
        if existing := same.order_by("-version").first():
            return recheck_suite(suite=existing, by=by) if existing.state == SuiteState.FAILED else existing
        newest = Suite.objects.filter(project=project, slug=definition.slug).aggregate(newest=Max("version"))["newest"]
        suite = Suite.objects.create(
            project=project,
            slug=definition.slug,
            version=(newest or 0) + 1,
            source=source,
            content_hash=digest,
            created_by=by,
            import_notes=[dict(note) for note in notes],
            status_message="Checking that every reference passes and every known-bad answer fails.",
            **columns,
        )
        Task.objects.bulk_create(_rows(suite, prepared, keys), batch_size=500)
        start_checks(suite)
        after = {
            "suite": str(suite), "content_hash": digest, "num_tasks": len(prepared), "source": source,
            "import_notes": suite.import_notes,
        }  # fmt: skip
        record(tag="user:suite:import", by=by, project=project, subject=suite, after=after)
    return suite


def note_heldout_look(*, suite: Suite, by: User, task_keys: Sequence[str]) -> None:
    """Write down that a person was shown held-out content. Raises Problem unless they may see it."""
    require(by, Permission.HELDOUT_READ, suite.project)
    after = {"suite": str(suite), "tasks": list(task_keys)}
    record(tag="user:heldout:read", by=by, project=suite.project, subject=suite, after=after)


def sft_dataset(suite: Suite, max_tasks: int = 0, seed: int = 0, num_shots: int = 0) -> str:
    """Object key of a JSONL of {prompt, completion} from ready train tasks that have a reference.

    `max_tasks` 0: all, else so many drawn by `seed`. The same arguments give the same bytes, hence the same key.
    Raises Problem 409 where there is no reference to learn from.
    """
    tasks = list(ready_tasks(suite, SplitName.TRAIN))
    random.Random(f"sft {suite.content_hash} {seed}").shuffle(tasks)
    lines: list[bytes] = []
    for task in tasks:
        if max_tasks and len(lines) == max_tasks:
            break
        bundle = load_bundle(task)
        if bundle.reference:
            example = {"prompt": bundle.conversation(num_shots), "completion": bundle.reference}
            lines.append(msgspec.json.encode(example))
    if not lines:
        raise Problem(
            "no_references", 409, f"No ready train task of {suite} has a reference: supervised training needs them."
        )
    return get_store().put(b"\n".join(lines) + b"\n")


def _rows(suite: Suite, prepared: Sequence[PreparedTask], keys: Sequence[str]) -> list[Task]:
    return [
        Task(
            suite=suite,
            key=task.bundle.key,
            split=str(task.split),
            position=position,
            bundle=key,
            task_hash=task.task_hash,
            prompt_hash=task.prompt_hash,
            prompt_preview=task.preview,
            cluster=task.bundle.cluster,
            tags=list(task.bundle.tags),
        )
        for position, (task, key) in enumerate(zip(prepared, keys, strict=True))
    ]
