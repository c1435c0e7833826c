"""Rows that many tests start from: a project with people, a ready suite, a base policy."""

from dataclasses import dataclass
from typing import Any

from apps.accounts.models import Membership, Project, Role, User
from apps.policies.models import BaseModel, Policy, PolicyKind
from apps.tasks.models import SplitName, Suite, SuiteState, Task, TaskState


@dataclass
class World:
    """One project; every role has a user named after it."""

    project: Project
    suite: Suite
    base: BaseModel
    policy: Policy
    users: dict[str, User]

    @property
    def engineer(self) -> User:
        return self.users[Role.ENGINEER]


def make_world(*, slug: str = "lab", num_train: int = 12, adapter: bool = False) -> World:
    """A world with `num_train` ready train tasks, two held-out ones and a base policy `base`."""
    project = Project.objects.create(slug=slug, title=slug.title())
    users = {}
    for role in Role.values:
        users[role] = User.objects.create_user(f"{slug}-{role}", password="a long password")
        Membership.objects.create(user=users[role], project=project, role=role)
    suite = Suite.objects.create(
        project=project,
        slug="sums",
        title="Sums",
        distribution="Sums of two small numbers",
        failure_modes=[{"code": "WRONG_ANSWER", "meaning": "another number"}],
        content_hash="c" * 64,
        state=SuiteState.READY,
    )
    rows = [(SplitName.TRAIN, num_train), (SplitName.DEV, 2), (SplitName.HELDOUT, 2)]
    position = 0
    for split, count in rows:
        for _ in range(count):
            Task.objects.create(
                suite=suite, key=f"{split}-{position}", split=split, position=position, state=TaskState.READY,
                bundle=f"objects/00/{position:064d}", task_hash=f"{position:064d}",
            )  # fmt: skip
            position += 1
    base, _ = BaseModel.objects.get_or_create(slug="tiny", defaults={"title": "Tiny"})
    policy = Policy.objects.create(
        project=project, slug="base", title="Base", kind=PolicyKind.PROMPT, base_model=base,
        adapter="adapters/parent" if adapter else "", adapter_sha256="a" * 64 if adapter else "",
    )  # fmt: skip
    return World(project, suite, base, policy, users)


def run_spec(**changes: Any) -> dict[str, Any]:
    """A small RunSpec; nested fields by double underscore, e.g. rollout__max_staleness=0."""
    spec: dict[str, Any] = {
        "suite": "sums",
        "policy": "base",
        "steps": 4,
        "seed": 7,
        "rollout": {"prompts_per_batch": 2, "group_size": 4, "max_staleness": 1},
    }
    for name, value in changes.items():
        head, _, tail = name.partition("__")
        if tail:
            spec.setdefault(head, {})[tail] = value
        else:
            spec[head] = value
    return spec
