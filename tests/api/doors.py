"""Every address of the platform with the right that opens it. A new one without an entry fails test_matrix."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from apps.accounts.permissions import Permission as P
from tests.api.worlds import Plant

Made = Callable[[Plant], Any]


class Who(Enum):
    """Doors that no right in a project opens."""

    ANYONE = "anyone"  # signed in or not
    SIGNED_IN = "signed in"
    SUPERUSER = "superuser"
    STAFF = "staff"
    OWNER = "owner"  # whom the object belongs to: none of the matrix's people
    WORKER = "worker"  # holds the worker secret


@dataclass(frozen=True)
class Door:
    """One method of one address. `right` (all of several): in the project of `kwargs`, of the body or of the query.

    `shows`: of a list, what it holds of a project for who has the right; everyone may ask, none sees another's.
    `ok`: answers to who has the right. `closed`: the answer to a member without it.
    """

    right: P | Who | tuple[P, ...]
    kwargs: Made = field(default=lambda plant: {})
    query: Made = field(default=lambda plant: {})
    body: Made | None = None
    shows: Made | None = None
    ok: tuple[int, ...] = (200,)
    closed: tuple[int, ...] = (403,)

    @property
    def rights(self) -> tuple[P, ...]:
        found = self.right if isinstance(self.right, tuple) else (self.right,)
        return tuple(right for right in found if isinstance(right, P))


def pk(name: str, **more: str) -> Made:
    return lambda plant: {"pk": plant.ids[name], **{key: plant.ids[value] for key, value in more.items()}}


def slug(plant: Plant) -> dict[str, str]:
    return {"slug": plant.slug}


def project(plant: Plant) -> dict[str, str]:
    return {"project": plant.slug}


def in_project(**values: Any) -> Made:
    return lambda plant: {"project": plant.slug, **values}


def said(**values: Any) -> Made:
    return lambda plant: values


def row(name: str) -> Made:
    return lambda plant: str(plant.ids[name])


def channel(plant: Plant) -> dict[str, str]:
    return {"project": plant.slug, "name": "production"}


def member(plant: Plant) -> dict[str, str]:
    return {"slug": plant.slug, "username": plant.ids["member"]}


def invitation(plant: Plant) -> dict[str, Any]:
    return {"slug": plant.slug, "pk": plant.ids["invitation"]}


def decision(plant: Plant) -> dict[str, str]:
    from apps.promotions.models import Gate

    digest = Gate.objects.get(pk=plant.ids["gate"]).evidence_digest
    return {"kind": "reject", "reason": "not good enough for us", "evidence_digest": digest}


SPEC = {"suite": "sums", "policy": "base", "steps": 2}
EITHER = (403, 404)
HEADER = {
    "slug": "more", "title": "More", "distribution": "more sums", "verifier": {"kind": "number"},
    "failure_modes": [{"code": "WRONG_ANSWER", "meaning": "another number"}],
}  # fmt: skip
TASKS = [
    {"key": f"{split}-1", "split": split, "prompt": f"{split} 4 + 5?", "expected": 9, "reference": "9"}
    for split in ("train", "heldout")
]
HELDOUT_EPISODE = (P.EPISODE_READ, P.HELDOUT_READ)  # without the first it does not exist for one

DOORS: dict[tuple[str, str], Door | tuple[Door, ...]] = {
    # accounts
    ("api-me", "GET"): Door(Who.SIGNED_IN),
    ("api-projects", "GET"): Door(P.PROJECT_READ, shows=lambda plant: f'"{plant.slug}"'),
    ("api-projects", "POST"): Door(Who.SUPERUSER, body=said(slug="new", title="New"), ok=(201,)),
    ("api-project", "GET"): Door(P.PROJECT_READ, slug),
    ("api-project", "PATCH"): Door(P.PROJECT_UPDATE, slug, body=said(title="Another")),
    ("api-members", "GET"): Door(P.PROJECT_READ, slug),
    ("api-members", "POST"): Door(
        P.MEMBER_MANAGE, slug, body=lambda p: {"username": p.ids["member"], "role": "viewer"}, ok=(201,)
    ),
    ("api-member", "GET"): Door(P.PROJECT_READ, member),
    ("api-invitations", "GET"): Door(P.MEMBER_MANAGE, slug),
    ("api-invitations", "POST"): Door(
        P.MEMBER_MANAGE, slug, body=said(email="new@example.org", role="viewer"), ok=(201,)
    ),
    ("api-invitation", "GET"): Door(P.MEMBER_MANAGE, invitation),
    ("api-invitation", "DELETE"): Door(P.MEMBER_MANAGE, invitation, ok=(204,)),
    ("api-invitation-accept", "POST"): Door(  # who holds the link joins; members have a role already
        Who.SIGNED_IN, body=lambda p: {"secret": p.ids["secret"]}, ok=(201, 409)
    ),
    ("api-member", "PUT"): Door(P.MEMBER_MANAGE, member, body=said(role="viewer")),
    ("api-member", "DELETE"): Door(P.MEMBER_MANAGE, member, ok=(204,)),
    ("api-tokens", "GET"): Door(Who.OWNER, shows=row("token")),
    ("api-tokens", "POST"): Door(Who.SIGNED_IN, body=said(name="mine"), ok=(201,)),
    ("api-token", "GET"): Door(Who.OWNER, pk("token")),
    ("api-token", "DELETE"): Door(Who.OWNER, pk("token"), ok=(204,)),
    # audit
    ("api-audit", "GET"): Door(P.AUDIT_READ, shows=lambda plant: str(plant.project.pk)),
    ("api-audit-verify", "GET"): Door(P.AUDIT_READ, query=project),
    ("api-audit-export", "GET"): Door(P.AUDIT_READ, query=project),
    # webhooks
    ("api-webhooks", "GET"): Door(P.WEBHOOK_MANAGE, shows=row("webhook")),
    ("api-webhooks", "POST"): Door(
        P.WEBHOOK_MANAGE, body=in_project(url="https://example.org/new", events=["run:*"]), ok=(201,)
    ),
    ("api-webhook", "GET"): Door(P.WEBHOOK_MANAGE, pk("webhook"), closed=(404,)),
    ("api-webhook", "PATCH"): Door(P.WEBHOOK_MANAGE, pk("webhook"), body=said(enabled=False), closed=(404,)),
    ("api-webhook", "DELETE"): Door(P.WEBHOOK_MANAGE, pk("webhook"), ok=(204,), closed=(404,)),
    ("api-webhook-rotate", "POST"): Door(P.WEBHOOK_MANAGE, pk("webhook"), closed=(404,)),
    ("api-webhook-test", "POST"): Door(P.WEBHOOK_MANAGE, pk("webhook"), ok=(202,), closed=(404,)),
    ("api-webhook-deliveries", "GET"): Door(P.WEBHOOK_MANAGE, pk("webhook"), closed=(404,)),
    ("api-webhook-delivery", "GET"): Door(P.WEBHOOK_MANAGE, pk("delivery"), closed=(404,)),
    ("api-webhook-redeliver", "POST"): Door(P.WEBHOOK_MANAGE, pk("delivery"), ok=(202,), closed=(404,)),
    ("api-retention", "GET"): Door(Who.SUPERUSER),
    # suites and tasks
    ("api-suites", "GET"): Door(P.SUITE_READ, shows=row("suite")),
    ("api-suites", "POST"): Door(P.SUITE_CREATE, body=in_project(header=HEADER, tasks=TASKS), ok=(202,)),
    ("api-suite-import", "POST"): Door(P.SUITE_CREATE, body=in_project(source="toolbox"), ok=(202,)),
    ("api-suite", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("api-suite-progress", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("api-suite-recheck", "POST"): Door(P.SUITE_CREATE, pk("suite"), ok=(200, 202, 409)),
    ("api-suite-tasks", "GET"): (
        Door(P.SUITE_READ, pk("suite")),
        Door(P.SUITE_READ, pk("suite"), said(**{"as": "jsonl"})),
    ),
    ("api-suite-tasks-export", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("api-suite-report", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("api-suite-report", "POST"): Door(P.EVALUATION_CREATE, pk("suite"), body=said(probe=False), ok=(200, 202)),
    ("api-suite-report-finding", "GET"): Door(
        P.SUITE_READ, lambda p: {"pk": p.ids["suite"], "finding": p.ids["finding"]}
    ),
    ("api-task-contract", "GET"): (
        Door(P.SUITE_READ, pk("task")),
        Door(P.SUITE_READ, pk("heldout_task")),
    ),
    ("api-task", "GET"): (
        Door(P.SUITE_READ, pk("task")),
        Door(P.SUITE_READ, pk("heldout_task")),
        Door(P.SUITE_READ, pk("heldout_quarantined")),
    ),
    ("api-task-release", "POST"): (
        Door(P.TASK_RELEASE, pk("quarantined"), body=said(reason="the check was wrong")),
        Door(P.TASK_RELEASE, pk("heldout_quarantined"), body=said(reason="the check was wrong")),
    ),
    ("api-task-put-back", "POST"): Door(P.TASK_RELEASE, pk("released"), body=said(reason="the check was right")),
    # policies and channels
    ("api-base-models", "GET"): Door(Who.SIGNED_IN),
    ("api-base-model", "GET"): Door(Who.SIGNED_IN, said(slug="tiny")),
    ("api-policies", "GET"): Door(P.POLICY_READ, shows=row("base")),
    ("api-policies", "POST"): Door(P.POLICY_CREATE, body=in_project(slug="p2", base_model="tiny"), ok=(201,)),
    ("api-policy", "GET"): Door(P.POLICY_READ, pk("candidate")),
    ("api-channels", "GET"): Door(P.CHANNEL_READ, shows=lambda plant: f'"project":"{plant.slug}"'),
    ("api-channels", "POST"): Door(P.CHANNEL_MOVE, body=in_project(name="canary", policy="base"), ok=(201,)),
    ("api-channel", "GET"): Door(P.CHANNEL_READ, channel),
    ("api-rollback", "POST"): Door(P.CHANNEL_ROLLBACK, channel, body=said(reason="it is slow"), ok=(409,)),
    # runs
    ("api-runs", "GET"): Door(P.RUN_READ, shows=row("run")),
    ("api-runs", "POST"): Door(P.RUN_CREATE, body=in_project(spec=SPEC), ok=(202,)),
    ("api-run-validate", "POST"): Door(P.RUN_CREATE, body=in_project(spec=SPEC)),
    ("api-run", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-cancel", "POST"): Door(P.RUN_CONTROL, pk("run"), body=said(reason="enough"), ok=(202,)),
    ("api-run-pause", "POST"): Door(P.RUN_CONTROL, pk("run"), ok=(202,)),
    ("api-run-resume", "POST"): Door(P.RUN_CONTROL, pk("run"), ok=(202,)),
    ("api-run-retry", "POST"): Door(P.RUN_CONTROL, pk("run"), ok=(202, 409)),
    ("api-run-events", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-ledger", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-long-tail", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-batches", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-checkpoints", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-groups", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-episodes", "GET"): Door(P.EPISODE_READ, pk("run"), said(transcripts="1")),
    ("api-run-metrics", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-run-live", "GET"): Door(P.RUN_READ, pk("run")),
    ("api-metrics", "GET"): Door(Who.SIGNED_IN),
    ("api-group", "GET"): (
        Door(P.EPISODE_READ, pk("group"), closed=(404,)),
        Door(HELDOUT_EPISODE, pk("heldout_group"), closed=EITHER),
    ),
    ("api-episodes", "GET"): (
        Door(P.EPISODE_READ, shows=row("episode")),
        Door(P.EPISODE_READ, query=said(**{"as": "jsonl"}), shows=row("episode")),
    ),
    ("api-episode", "GET"): (
        Door(P.EPISODE_READ, pk("episode"), said(tokens="1"), closed=(404,)),
        Door(HELDOUT_EPISODE, pk("heldout_episode"), said(tokens="1"), closed=EITHER),
    ),
    ("api-episode-reproduce", "POST"): (
        Door((P.EPISODE_READ, P.EVALUATION_CREATE), pk("episode"), ok=(202,), closed=EITHER),
        Door((*HELDOUT_EPISODE, P.EVALUATION_CREATE), pk("heldout_episode"), ok=(202,), closed=EITHER),
    ),
    ("api-episode-reproductions", "GET"): (
        Door(P.EPISODE_READ, pk("episode"), closed=(404,)),
        Door(HELDOUT_EPISODE, pk("heldout_episode"), closed=EITHER),
    ),
    ("api-reproduction", "GET"): (
        Door(P.EPISODE_READ, pk("episode", reproduction="reproduction"), ok=(202,), closed=(404,)),
        Door(HELDOUT_EPISODE, pk("heldout_episode", reproduction="heldout_reproduction"), closed=EITHER),
    ),
    # evaluations
    ("api-evaluations", "GET"): Door(P.EVALUATION_READ, shows=row("evaluation")),
    ("api-evaluations", "POST"): Door(
        P.EVALUATION_CREATE, body=in_project(suite="sums", split="dev", policies=["base"]), ok=(202,)
    ),
    ("api-evaluation", "GET"): Door(P.EVALUATION_READ, pk("evaluation")),
    ("api-evaluation-results", "GET"): (
        Door(P.EVALUATION_READ, pk("dev_evaluation")),
        Door(P.EVALUATION_READ, pk("evaluation")),
    ),
    ("api-evaluation-retry", "POST"): Door(P.EVALUATION_CREATE, pk("dev_evaluation"), ok=(202,)),
    ("api-evaluation-comparison", "GET"): Door(P.EVALUATION_READ, pk("dev_evaluation")),
    ("api-evaluation-cancel", "POST"): Door(P.EVALUATION_CREATE, pk("open_evaluation")),
    ("api-evaluation-episodes", "GET"): (
        Door(P.EPISODE_READ, pk("dev_evaluation")),
        Door(HELDOUT_EPISODE, pk("evaluation")),
    ),
    ("api-gate-policy", "GET"): Door(P.GATE_READ, pk("gate_policy"), closed=(404,)),
    ("api-gate-policies", "GET"): Door(P.GATE_READ, shows=row("gate_policy")),
    ("api-gate-policies", "POST"): Door(P.GATE_DECIDE, body=in_project(slug="strict", alpha=0.01), ok=(201,)),
    ("api-verifier-gap", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("api-verifier-measurements", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("api-verifier-measurements", "POST"): Door(P.EVALUATION_CREATE, pk("suite"), body=said(seed=2), ok=(202, 409)),
    ("api-verifier-measurement", "GET"): Door(P.SUITE_READ, pk("measurement")),
    ("api-measured-candidates", "GET"): Door(P.SUITE_READ, pk("measurement"), said(selection="all")),
    ("api-measured-candidate", "GET"): (
        Door(P.SUITE_READ, pk("candidate_open")),
        Door(P.SUITE_READ, pk("candidate_heldout")),
    ),
    ("api-heldout-ledger", "GET"): Door(P.SUITE_READ, pk("suite")),
    # reviews
    ("api-review-next", "POST"): Door(P.REVIEW_LABEL, shows=row("item")),
    ("api-review-summary", "GET"): Door(Who.SIGNED_IN),
    ("api-review-label", "POST"): Door(
        P.REVIEW_LABEL, pk("item"), body=said(verdict="pass"), ok=(201, 409), closed=(404,)
    ),
    ("api-review-labels", "GET"): Door((P.REVIEW_MANAGE, P.HELDOUT_READ), shows=row("label")),
    ("api-review-skip", "POST"): Door(
        P.REVIEW_LABEL, pk("item"), body=said(reason="dull"), ok=(204, 409), closed=(404,)
    ),
    ("api-review-undo", "POST"): Door(P.REVIEW_LABEL, pk("item"), ok=(200, 409), closed=(404,)),
    # gates
    ("api-gates", "GET"): Door(P.GATE_READ, shows=row("gate")),
    ("api-gates", "POST"): Door(P.GATE_CREATE, body=in_project(candidate="candidate", suite="sums"), ok=(202,)),
    ("api-gate-plan", "GET"): Door(P.GATE_READ, query=lambda p: {"project": p.slug, "suite": "sums"}),
    ("api-gate", "GET"): Door(P.GATE_READ, pk("gate")),
    ("api-gate-decision", "POST"): Door(P.GATE_DECIDE, pk("gate"), body=decision),
    ("api-gate-confirm", "POST"): Door(P.GATE_OVERRIDE, pk("gate"), body=said(evidence_digest="x"), ok=(409,)),
    ("api-gate-evidence", "GET"): Door(P.GATE_READ, pk("gate")),
    # the document of the API, health, serving gateways
    ("api-root", "GET"): Door(Who.ANYONE),
    ("schema", "GET"): Door(Who.ANYONE),
    ("swagger", "GET"): Door(Who.ANYONE),
    ("redoc", "GET"): Door(Who.ANYONE),
    ("healthz", "GET"): Door(Who.ANYONE, ok=(200, 503)),
    ("prometheus-metrics", "GET"): Door(Who.ANYONE),
    ("internal-introspect", "POST"): Door(Who.WORKER, body=said(token="rt_x")),
    ("internal-channels", "GET"): Door(Who.WORKER),
    ("internal-ack", "POST"): Door(Who.WORKER, body=said(gateway="g", project="own", channel="production", epoch=1)),
    # pages
    ("login", "GET"): Door(Who.ANYONE, ok=(200, 302)),
    ("logout", "POST"): Door(Who.ANYONE, ok=(302,)),
    ("account", "GET"): Door(Who.SIGNED_IN),
    ("password", "GET"): Door(Who.SIGNED_IN),
    ("openid_connect_login", "POST"): Door(Who.ANYONE, said(provider_id="sso"), ok=(404,)),  # none is set up
    ("openid_connect_callback", "GET"): Door(Who.ANYONE, said(provider_id="sso"), ok=(404,)),
    ("people", "GET"): Door(P.PROJECT_READ, slug),
    ("people", "POST"): Door(P.MEMBER_MANAGE, slug, body=said(email="x@example.org", role="viewer", days="7")),
    ("change-member", "POST"): Door(P.MEMBER_MANAGE, member, body=said(role="viewer"), ok=(302,)),
    ("revoke-invitation", "POST"): Door(P.MEMBER_MANAGE, invitation, ok=(302,)),
    ("invitation", "GET"): Door(Who.ANYONE, lambda p: {"secret": p.ids["secret"]}),
    ("webhooks", "GET"): Door(P.WEBHOOK_MANAGE, slug),
    ("webhooks", "POST"): Door(P.WEBHOOK_MANAGE, slug, body=said(url="https://example.org/x", events="run:*")),
    ("webhook", "GET"): Door(P.WEBHOOK_MANAGE, pk("webhook"), closed=(404,)),
    ("webhook", "POST"): Door(P.WEBHOOK_MANAGE, pk("webhook"), body=said(do="switch"), ok=(302,), closed=(404,)),
    ("webhook-delivery", "GET"): Door(P.WEBHOOK_MANAGE, pk("delivery"), closed=(404,)),
    ("webhook-delivery", "POST"): Door(P.WEBHOOK_MANAGE, pk("delivery"), ok=(302,), closed=(404,)),
    ("revoke-token", "POST"): Door(Who.OWNER, pk("token"), ok=(302,)),
    ("audit", "GET"): Door(P.AUDIT_READ, query=said(verify="1"), shows=lambda plant: plant.author.username),
    ("suites", "GET"): Door(P.SUITE_READ, shows=row("suite")),
    ("suite", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("suite-report", "GET"): Door(P.SUITE_READ, pk("suite"), lambda p: {"finding": p.ids["finding"]}),
    ("suite-verifier", "GET"): Door(P.SUITE_READ, pk("suite")),
    ("measured-candidate", "GET"): (
        Door(P.SUITE_READ, pk("candidate_open")),
        Door(P.SUITE_READ, pk("candidate_heldout")),
    ),
    ("task", "GET"): (
        Door(P.SUITE_READ, pk("task")),
        Door(P.SUITE_READ, pk("heldout_task")),
        Door(P.SUITE_READ, pk("heldout_quarantined")),
    ),
    ("policies", "GET"): Door(P.POLICY_READ, shows=row("base")),
    ("policy", "GET"): Door(P.POLICY_READ, pk("candidate")),
    ("channel", "GET"): Door(P.CHANNEL_READ, channel),
    ("runs", "GET"): Door(P.RUN_READ, shows=row("run")),
    ("run", "GET"): Door(P.RUN_READ, pk("run")),
    ("groups", "GET"): Door(P.EPISODE_READ, pk("run")),
    ("group", "GET"): (
        Door(P.EPISODE_READ, pk("group"), closed=(404,)),
        Door(HELDOUT_EPISODE, pk("heldout_group"), closed=EITHER),
    ),
    ("episode", "GET"): (
        Door(P.EPISODE_READ, pk("episode"), closed=(404,)),
        Door(HELDOUT_EPISODE, pk("heldout_episode"), closed=EITHER),
    ),
    ("evaluations", "GET"): Door(P.EVALUATION_READ, shows=row("evaluation")),
    ("evaluation", "GET"): (
        Door(P.EVALUATION_READ, pk("dev_evaluation")),
        Door(P.EVALUATION_READ, pk("evaluation")),
    ),
    ("review", "GET"): Door(P.REVIEW_LABEL, shows=row("item")),
    ("review-rates", "GET"): Door(Who.SIGNED_IN),
    ("home", "GET"): Door(P.CHANNEL_READ, shows=lambda plant: f"Project {plant.slug}"),
    ("gates", "GET"): Door(P.GATE_READ, shows=row("gate")),
    ("gate", "GET"): Door(P.GATE_READ, pk("gate")),
    ("gate-progress", "GET"): Door(P.GATE_READ, pk("gate")),
}


def addresses(patterns: Any = None, namespace: str = "") -> Iterator[tuple[str, Any]]:
    """(name, view) of every pattern of the resolver; unnamed ones by their route."""
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        if isinstance(entry, URLResolver):
            yield from addresses(entry.url_patterns, entry.namespace or namespace)
        elif isinstance(entry, URLPattern):
            name = f"{namespace}:{entry.name}" if namespace else entry.name or f"unnamed {entry.pattern}"
            yield name, entry.callback


def methods_of(view: Any) -> set[str]:
    """Methods that a class of the API answers; a page's function is listed by hand."""
    kind = getattr(view, "cls", None) or getattr(view, "view_class", None)
    if kind is None:
        return set()
    names = (name for name in kind.http_method_names if name not in ("options", "head", "trace"))
    return {name.upper() for name in names if hasattr(kind, name)}


def entries() -> Iterator[tuple[str, str, Door]]:
    for (name, method), doors in DOORS.items():
        for door in doors if isinstance(doors, tuple) else (doors,):
            yield name, method, door
